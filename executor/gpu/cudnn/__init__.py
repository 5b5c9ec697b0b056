"""cuDNN, the vendor's library of neural networks, and its one door: its Python front end.

Calls of attention and convolution come in (`millrace.executor.cuda.calls.LibraryCall`); out come
plans that are made before the first step and put on a stream by address. Read `cudnn_loading.py`
first (when it is used), then `limits.py` (what it is not given), `cudnn_graphs.py` (what it is
told), `library.py` (plans) and `issuing.py` (their scratch memory).
"""
