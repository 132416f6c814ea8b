"""Tables of every kind: which there are, their initial values, and the module that looks up in them."""

from app.model.embeddings.initial import initial_rows
from app.model.embeddings.sparse_arch import SparseArch, make_sparse_arch
from app.model.embeddings.spec import Embedding, Table, make_embeddings

__all__ = ["Embedding", "SparseArch", "Table", "initial_rows", "make_embeddings", "make_sparse_arch"]
