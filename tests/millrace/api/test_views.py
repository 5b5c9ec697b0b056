"""Results as text and as HTML: escaped, alone, and with a bar where there is a fraction."""

from html.parser import HTMLParser

from rich.table import Table

from millrace.api.views import ResultView, TableView, result_html, result_text, table_view

HOSTILE = "<script>alert('1 & 2')</script>"


class Outline(HTMLParser):
    """Tags and texts of a page; every tag that opens is closed in its turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.open_tags: list[str] = []
        self.feed(page)
        self.close()
        assert self.open_tags == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        self.open_tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def hostile_view() -> ResultView:
    table = Table(title=HOSTILE)
    table.add_column("name")
    table.add_column(HOSTILE, justify="right")
    table.add_row(HOSTILE, "1.5")
    table.add_row("second", "20")
    return ResultView(
        title=HOSTILE,
        figures=((HOSTILE, HOSTILE),),
        tables=(table_view(table, (0.25, None)),),
        notes=(HOSTILE,),
    )


def test_html_escapes_every_text_and_asks_for_nothing():
    page = result_html(hostile_view())
    outline = Outline(page)
    assert "script" not in outline.tags
    assert outline.texts.count(HOSTILE) == 7
    assert "http" not in page
    assert "src=" not in page
    assert page.count('style="width: 25.0%"') == page.count('class="bar"') == 1


def test_text_is_aligned_and_cut_where_tables_are_long():
    table = TableView(
        title="",
        columns=("a", "b"),
        numbers=(False, True),
        rows=(("x\n" + "x" * 98, "1"), *(("y", "20"),) * 20),
    )
    shown = ResultView(title="title", figures=(("one", "1"),), tables=(table,))
    lines = result_text(shown).split("\n")
    assert lines[:2] == ["title", "  one  1"]
    assert lines[2:5] == [f"  a{' ' * 61} b", f"  x, {'x' * 56}…   1", f"  y{' ' * 61}20"]
    assert lines[-1] == "  … and 9 more"
    assert result_text(hostile_view(), tables=False).count("\n") == 2
