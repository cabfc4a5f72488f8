"""How reliefs look, and their script: a read-out over the maps, and a surface that turns by pointer and by keys."""

CSS = """
.contour{fill:none;stroke:#fff;stroke-width:.8;opacity:.5}
svg circle.place{fill:#fff;stroke:#111;stroke-width:2}svg text.place{fill:#111;stroke:#fff;font-weight:600}
canvas{display:block;width:100%;height:min(62vw,520px);background:var(--card);border:1px solid var(--rule);
border-radius:10px;cursor:grab;touch-action:pan-y}canvas:active{cursor:grabbing}
canvas:focus-visible{outline:2px solid var(--c0);outline-offset:2px}
.controls{display:flex;flex-wrap:wrap;gap:4px 22px;margin:9px 0 0;font-size:14px;color:var(--soft)}
select{font:inherit;color:var(--ink);background:var(--paper);border:1px solid var(--edge);border-radius:6px;
padding:2px 6px}
.choice>label{display:inline-block;margin:0 18px 0 5px;font-size:14px}.choice>.option{display:none}
.choice>input:nth-of-type(1):checked~.option:nth-of-type(1),
.choice>input:nth-of-type(2):checked~.option:nth-of-type(2){display:block}
[data-kind=map] svg{max-width:480px}
@media screen and (max-width:700px){canvas{height:92vw}}
@media print{[data-kind=space],.choice>input,.choice>label{display:none}}
"""

SCRIPT = """
const maps = [...document.querySelectorAll('figure[data-kind=map]')]
const numbers = maps[0]
const head = numbers ? [...numbers.querySelectorAll('thead th')].map(th => th.textContent) : []
const rows = numbers ? [...numbers.querySelectorAll('tbody tr')].map(tr => [...tr.cells].map(td => td.textContent)) : []
const told = row => row.map((value, i) => head[i] + ' ' + value).join(', ')

for (const map of maps) {
  const svg = map.querySelector('svg'), group = map.querySelector('g[data-across]')
  const readout = map.querySelector('.readout')
  const [left, right, low, high] = group.dataset.across.split(' ').map(Number)
  const [foot, top, least, most] = group.dataset.up.split(' ').map(Number)
  const dot = document.createElementNS(svg.namespaceURI, 'circle')
  dot.setAttribute('r', 3.5); dot.setAttribute('class', 'place'); dot.style.pointerEvents = 'none'
  const spot = row => [left + (Number(row[0]) - low) / (high - low) * (right - left),
    foot + (Number(row[1]) - least) / (most - least) * (top - foot)]
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale
    if (x < left - 9 || x > right + 9 || y < top - 9 || y > foot + 9) { dot.remove(); readout.textContent = ''; return }
    const away = row => Math.hypot(spot(row)[0] - x, spot(row)[1] - y)
    const near = rows.reduce((a, b) => away(b) < away(a) ? b : a)
    dot.setAttribute('cx', spot(near)[0]); dot.setAttribute('cy', spot(near)[1]); group.append(dot)
    readout.textContent = told(near)
  })
  svg.addEventListener('pointerleave', () => { dot.remove(); readout.textContent = '' })
}

for (const figure of document.querySelectorAll('figure[data-kind=space]')) {
  figure.hidden = false
  const canvas = figure.querySelector('canvas'), select = figure.querySelector('select')
  const readout = figure.querySelector('.readout'), pen = canvas.getContext('2d')
  const [across, up] = canvas.dataset.titles.split('|'), [columns, lines] = canvas.dataset.grid.split(' ').map(Number)
  const palette = canvas.dataset.palette.split(' ').map(c => [1, 3, 5].map(k => parseInt(c.slice(k, k + 2), 16)))
  const marks = canvas.dataset.marks.split('|').filter(Boolean).map(text => text.split(','))
  const grid = rows.slice(0, columns * lines), first = grid[0].map(Number), last = grid[grid.length - 1].map(Number)
  const flat = row => [0, 1].map(i => 2 * (Number(row[i]) - first[i]) / (last[i] - first[i]) - 1)
  const home = { yaw: 0.7, pitch: 0.6, zoom: 1 }
  let view = { ...home }, waiting = false, spots = []

  const rise = row => {
    const { low, high, log } = select.selectedOptions[0].dataset, at = log ? Math.log : v => v
    const value = Number(row[head.indexOf(select.value)])
    if (Number.isNaN(value)) return 1
    const inside = Math.min(Number(high), Math.max(Number(low), value))
    return (at(inside) - at(Number(low))) / (at(Number(high)) - at(Number(low)))
  }
  const project = (x, y, z) => {
    const [c, s] = [Math.cos(view.yaw), Math.sin(view.yaw)], [cp, sp] = [Math.cos(view.pitch), Math.sin(view.pitch)]
    const side = x * c - y * s, back = x * s + y * c, depth = back * cp - z * sp
    const size = Math.min(canvas.clientWidth * 0.27, canvas.clientHeight * 0.37) * view.zoom * 5 / (5 + depth)
    return [canvas.clientWidth / 2 + side * size, canvas.clientHeight * 0.45 - (z * cp + back * sp) * size, depth]
  }
  const draw = () => {
    waiting = false
    const style = getComputedStyle(document.documentElement), tone = name => style.getPropertyValue(name).trim()
    const sharp = window.devicePixelRatio || 1
    canvas.width = canvas.clientWidth * sharp; canvas.height = canvas.clientHeight * sharp
    pen.setTransform(sharp, 0, 0, sharp, 0, 0)
    pen.font = '13px sans-serif'; pen.lineJoin = 'round'
    frame(tone)
    const heights = grid.map(rise)
    spots = grid.map((row, i) => { const [x, y] = flat(row); return project(x, y, heights[i] * 1.1 - 0.55) })
    surface(heights)
    for (const [x, y, label] of marks) pin(x, y, label, tone)
  }
  const path = (points, close) => {
    pen.beginPath(); points.forEach((p, i) => i ? pen.lineTo(p[0], p[1]) : pen.moveTo(p[0], p[1]))
    if (close) pen.closePath()
  }
  const write = (text, x, y, align, tone, ink) => {
    const wide = pen.measureText(text).width, from = { left: 0, center: wide / 2, right: wide }[align]
    x = Math.min(canvas.clientWidth - 6 - wide + from, Math.max(6 + from, x))
    pen.textAlign = align; pen.lineWidth = 4; pen.strokeStyle = tone('--card'); pen.strokeText(text, x, y)
    pen.fillStyle = tone(ink); pen.fillText(text, x, y)
  }
  const frame = tone => {
    const corners = [[-1, -1], [1, -1], [1, 1], [-1, 1]], floor = corners.map(([x, y]) => project(x, y, -0.55))
    pen.strokeStyle = tone('--edge'); pen.lineWidth = 1; path(floor, true); pen.stroke()
    const middle = project(0, 0, -0.55)
    const beside = (x, y, text, away) => {
      const [px, py] = project(x, y, -0.55), far = Math.hypot(px - middle[0], py - middle[1]) || 1
      const tx = px + (px - middle[0]) / far * away, ty = py + (py - middle[1]) / far * away + 4
      write(text, tx, ty, tx < middle[0] - 30 ? 'right' : tx > middle[0] + 30 ? 'left' : 'center', tone, '--soft')
    }
    const near = (a, b) => project(...a, -0.55)[2] < project(...b, -0.55)[2]
    const y = near([0, -1], [0, 1]) ? -1 : 1, x = near([-1, 0], [1, 0]) ? -1 : 1
    beside(0, y, across, 20); beside(x, 0, up, 20)
    beside(-0.8, y, grid[0][0], 14); beside(0.8, y, grid[grid.length - 1][0], 14)
    beside(x, -0.8, grid[0][1], 14); beside(x, 0.8, grid[grid.length - 1][1], 14)
    const left = corners.reduce((a, b) => project(...b, 0)[0] < project(...a, 0)[0] ? b : a)
    const post = [project(...left, -0.55), project(...left, 0.55)]
    path(post); pen.strokeStyle = tone('--edge'); pen.lineWidth = 1; pen.stroke()
    const { low, high } = select.selectedOptions[0].dataset, brief = v => Number(Number(v).toPrecision(3)).toString()
    write(brief(low), post[0][0] - 8, post[0][1] - 6, 'right', tone, '--soft')
    write(brief(high), post[1][0] - 8, post[1][1] + 4, 'right', tone, '--soft')
    write(select.selectedOptions[0].textContent, post[1][0] - 8, post[1][1] - 14, 'right', tone, '--ink')
  }
  const surface = heights => {
    const cells = []
    for (let i = 0; i < columns - 1; i++) for (let j = 0; j < lines - 1; j++) {
      const at = [i * lines + j, (i + 1) * lines + j, (i + 1) * lines + j + 1, i * lines + j + 1]
      cells.push([at.reduce((sum, k) => sum + spots[k][2], 0), at])
    }
    cells.sort((a, b) => b[0] - a[0])
    for (const [, at] of cells) {
      const mean = at.reduce((sum, k) => sum + heights[k], 0) / 4
      const slope = (heights[at[0]] + heights[at[3]] - heights[at[1]] - heights[at[2]]) * columns / 8
      const light = Math.min(1.12, Math.max(0.72, 0.95 + 0.25 * slope / Math.hypot(1, slope)))
      const mixed = palette[Math.round(mean * (palette.length - 1))].map(part => Math.min(255, part * light))
      path(at.map(k => spots[k]), true)
      pen.fillStyle = pen.strokeStyle = `rgb(${mixed.join(' ')})`; pen.lineWidth = 1; pen.fill(); pen.stroke()
      pen.strokeStyle = 'rgb(255 255 255 / .22)'; pen.lineWidth = 0.6; pen.stroke()
    }
  }
  const pin = (x, y, label, tone) => {
    const row = rows.find(row => row[0] === x && row[1] === y); if (!row) return
    const [px, py] = flat(row), z = rise(row) * 1.1 - 0.55
    const foot = project(px, py, z), top = project(px, py, Math.max(z + 0.3, 0.7))
    path([foot, top]); pen.strokeStyle = tone('--ink'); pen.lineWidth = 1.4; pen.stroke()
    pen.beginPath(); pen.arc(foot[0], foot[1], 3.5, 0, 7); pen.fillStyle = tone('--ink'); pen.fill()
    write(label, top[0], top[1] - 6, 'center', tone, '--ink')
  }
  const later = () => { if (!waiting) { waiting = true; requestAnimationFrame(draw) } }
  const turn = (yaw, pitch, zoom = 1) => {
    view.yaw += yaw; view.pitch = Math.min(1.5, Math.max(0.05, view.pitch + pitch))
    view.zoom = Math.min(6, Math.max(0.5, view.zoom * zoom)); later()
  }
  canvas.addEventListener('pointerdown', event => { canvas.setPointerCapture(event.pointerId); canvas.focus() })
  canvas.addEventListener('pointermove', event => {
    if (event.buttons) { readout.textContent = ''; turn(-event.movementX / 150, event.movementY / 150); return }
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top
    let near = -1, least = 20
    spots.forEach((spot, i) => {
      const away = Math.hypot(spot[0] - x, spot[1] - y)
      if (away < least) { least = away; near = i }
    })
    readout.textContent = near < 0 ? '' : told(grid[near])
  })
  canvas.addEventListener('pointerleave', () => { readout.textContent = '' })
  canvas.addEventListener('wheel', event => {
    // Only once it was clicked, or a page that is scrolled past would stop here.
    if (document.activeElement === canvas) { event.preventDefault(); turn(0, 0, Math.exp(-event.deltaY / 600)) }
  }, { passive: false })
  canvas.addEventListener('keydown', event => {
    const turns = { ArrowLeft: [0.1, 0], ArrowRight: [-0.1, 0], ArrowUp: [0, 0.08], ArrowDown: [0, -0.08],
      '+': [0, 0, 1.15], '=': [0, 0, 1.15], '-': [0, 0, 1 / 1.15] }
    if (event.ctrlKey || event.metaKey || event.altKey) return
    if (event.key === '0') { view = { ...home }; later(); event.preventDefault() }
    if (turns[event.key]) { turn(...turns[event.key]); event.preventDefault() }
  })
  select.addEventListener('change', later)
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', later)
  new ResizeObserver(later).observe(canvas)
}
"""
