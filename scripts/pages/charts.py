"""Makes the markup of the tables and charts of the report page. report.css has the style."""

import html
import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 360, 240, 44, 10, 10, 38  # a chart and its margins, in SVG units
TICK = 40  # the least distance between two labels


def escaped(value):
    return html.escape(str(value))


def grid(parts):
    return f"<div class=grid>{''.join(parts)}</div>" if parts else ""


def table(caption, heads, rows):
    """Returns a table whose rows are cards on a phone. Rows are (number of the record or None, cells). A cell is
    escaped unless it is a list, which holds markup."""
    body = []
    for number, cells in rows:
        link = "" if number is None else f" data-r={number} tabindex=0"
        body.append(f"<tr{link}>" + "".join(
            f'<td data-h="{escaped(head)}">{cell[0] if isinstance(cell, list) else escaped(cell)}'
            for head, cell in zip(heads, cells)))
    head = "".join(f"<th scope=col>{escaped(head)}" for head in heads)
    return (f'<table class=cards><caption>{escaped(caption)}</caption><thead><tr>{head}</thead>'
            f"<tbody>{''.join(body)}</tbody></table>")


def steps(high):
    """Returns round numbers from 0 to `high`, for an axis."""
    size = 10.0 ** math.floor(math.log10(high / 4))
    size = next(size * n for n in (1, 2, 5, 10) if high / (size * n) <= 5)
    return [i * size for i in range(math.floor(high / size) + 1)]


def chart(title, x_title, y_title, lines, rules=()):
    """Returns a chart with a logarithmic x axis. A line is (name, points); a
    point is (x, value, low, high, number of the record). A rule is (name, value): a dashed line across the chart at
    this value."""
    points = [point for _, own in lines for point in own]
    xs = sorted({point[0] for point in points})
    high = max([point[3] for point in points] + [value for _, value in rules])
    span = math.log(xs[-1] / xs[0]) or 1
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def across(x):
        return round(LEFT + 8 + (right - LEFT - 16) * math.log(x / xs[0]) / span, 1)

    def up(y):
        return round(bottom - (bottom - TOP) * y / high, 1)

    parts = []
    for y in steps(high):
        parts.append(f"<path class=step d='M{LEFT} {up(y)}H{right}'/><text class=y x={LEFT - 5} y={up(y) + 4}>{y:g}"
                     "</text>")
    ticks = [x for x in xs if x & (x - 1) == 0]  # powers of two, if there are any
    labelled = []
    for x in ticks if len(ticks) > 2 else xs:
        if not labelled or across(x) - across(labelled[-1]) >= TICK:
            labelled.append(x)
            parts.append(f"<text class=x x={across(x)} y={bottom + 15}>{x}</text>")
    parts.append(f"<text class=x x={(WIDTH + LEFT) / 2} y={HEIGHT - 5}>{escaped(x_title)}</text>")
    for name, value in rules:
        parts.append(f"<path class=rule d='M{LEFT} {up(value)}H{right}'/><text class=y x={right} y={up(value) + 12}>"
                     f"{escaped(name)}</text>")
    for i, (_, own) in enumerate(lines):
        path = "L".join(f"{across(x)} {up(y)}" for x, y, *_ in own)
        bars = "".join(f"M{across(x)} {up(a)}V{up(b)}" for x, _, a, b, _ in own)
        dots = "".join(f"<circle cx={across(x)} cy={up(y)} r=4 data-r={number} />" for x, y, _, _, number in own)
        parts.append(f"<g class=s{i}><path d='M{path}{bars}'/>{dots}</g>")
    names = "".join(f"<li class=s{i}><span>{escaped(name)}</span>" for i, (name, _) in enumerate(lines))
    said = escaped(f"{title}: {y_title} against {x_title}")
    return (f"<figure><figcaption>{escaped(title)} <small>{escaped(y_title)}</small></figcaption>"
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role=img aria-label="{said}">{"".join(parts)}</svg>'
            f"<ul class=legend>{names}</ul></figure>")
