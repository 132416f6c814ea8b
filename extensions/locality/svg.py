"""A minimal SVG line chart: a few lines over a logarithmic axis."""

import math
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 36, 44, 92
COLOURS = ("#1f5fa8", "#d1602b", "#3d8b47", "#8250a8")
DASHES = ("", "7 4", "2 3", "10 3 2 3")  # Lines on top of each other stay visible.


class Line(NamedTuple):
    """A line with its name; x is above 0, y between 0 and 1."""

    name: str
    x: list[int]
    y: list[float]


def line_chart(title: str, x_name: str, y_name: str, lines: list[Line]) -> str:
    """Draw the chart; x is on a logarithmic scale from 1, y from 0 to 1."""
    decades = max(1, math.ceil(math.log10(max(line.x[-1] for line in lines))))

    def across(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log10(x) / decades

    def down(y: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - y)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13" fill="#222">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{WIDTH / 2}" y="24" text-anchor="middle" font-size="16">{escape(title)}</text>',
    ]
    for power in range(decades + 1):
        x = across(10**power)
        parts.append(_rule(x, down(1), x, down(0)))
        parts.append(f'<text x="{x:.1f}" y="{down(0) + 18:.1f}" text-anchor="middle">{10**power:,}</text>')
    for tenth in range(0, 11, 2):
        y = down(tenth / 10)
        parts.append(_rule(LEFT, y, WIDTH - RIGHT, y))
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tenth / 10:.1f}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{down(0) + 38:.1f}" text-anchor="middle">{escape(x_name)}</text>')
    turned = f'transform="rotate(-90 18 {down(0.5):.1f})"'
    parts.append(f'<text x="18" y="{down(0.5):.1f}" text-anchor="middle" {turned}>{escape(y_name)}</text>')
    for number, line in enumerate(lines):
        style = f'stroke="{COLOURS[number % 4]}" stroke-width="2.2" stroke-dasharray="{DASHES[number % 4]}" fill="none"'
        points = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in zip(line.x, line.y, strict=True))
        parts.append(f'<polyline points="{points}" {style}/>')
        y = HEIGHT - 34 + 18 * (number // 2)
        x = LEFT + (number % 2) * (WIDTH - LEFT - RIGHT) / 2
        parts.append(f'<line x1="{x}" y1="{y}" x2="{x + 34}" y2="{y}" {style}/>')
        parts.append(f'<text x="{x + 42}" y="{y + 4}">{escape(line.name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'
