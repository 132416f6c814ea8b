"""Sizes in bytes as text."""


def in_words(num_bytes: float) -> str:
    """Format bytes in the largest decimal unit that fits, such as 15.3 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < (1000 if unit == "B" else 999.95):
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} TB"
