"""Execute every notebook from top to bottom; an exception in a cell is a failure."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

for path in sorted(Path("notebooks").glob("*.ipynb")):
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": "notebooks"}}
    )
    client.execute()
    cells = sum(cell.cell_type == "code" for cell in notebook.cells)
    print(f"{path}: {cells} cells executed")
