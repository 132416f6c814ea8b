"""DLRM (Naumov et al. 2019, arXiv:1906.00091) and its relatives: architecture, tables and loss, not sharded."""
