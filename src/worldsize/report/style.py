"""How the page looks, and its one script: a read-out that follows the pointer over a line chart."""

# Colours: Okabe and Ito's set, which colour-blind readers can tell apart; lighter ones of it on dark paper.
COLOURS = """
:root{color-scheme:light dark;--paper:#fff;--card:#f6f7f9;--ink:#1b1f24;--soft:#5a636e;--rule:#e1e5ea;--edge:#d0d6dd;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b0568c;--c4:#b07a00;--c5:#56b4e9;--bar:#a9b4c0;--good:#00795a;--bad:#b84300;
--pale:.38}
@media screen and (prefers-color-scheme:dark){:root{--paper:#14181d;--card:#1d2329;--ink:#e8ebee;--soft:#a3adb8;
--rule:#2a3138;--edge:#3a434d;--c0:#56b4e9;--c1:#f08a4b;--c2:#2bbf94;--c3:#dd94bd;--c4:#e6b93f;--c5:#8ea2ff;
--bar:#5d6a77;--good:#3ccfa4;--bad:#ff9a62;--pale:.55}}
"""

DRAWING = """
svg text{font-size:13px;fill:var(--ink);font-variant-numeric:tabular-nums}svg .tick,svg .axis{fill:var(--soft)}
svg .tick{font-size:12.5px}svg .mid{text-anchor:middle}svg .end{text-anchor:end}
svg .value{font-weight:600;font-size:14px}
svg .remark{fill:var(--soft);font-size:12.5px}svg text{paint-order:stroke;stroke:var(--paper);
stroke-width:4px;stroke-linejoin:round}
.c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}.c5{--c:var(--c5)}
.line{fill:none;stroke:var(--c);stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}
.halo{stroke-width:8;opacity:var(--pale)}.faint{stroke-width:1.2;opacity:.7}.dashed{stroke-dasharray:6 5}
.band{fill:var(--c);opacity:.2}.mark{fill:var(--c);stroke:var(--paper);stroke-width:1.4}
.rule{stroke:var(--rule)}.leader{fill:none;stroke:var(--edge)}
.reference{stroke:var(--soft);stroke-width:1.2;stroke-dasharray:2 3}
.bar{fill:var(--bar)}.bar.highlight,.dot.highlight{fill:var(--c0)}.dot{fill:var(--bar);stroke:var(--paper);opacity:.85}
.whisker{stroke:var(--ink);stroke-width:1.6;fill:none}.track{stroke:var(--edge);stroke-width:2;fill:none}
.cross{stroke:var(--soft);stroke-width:1;pointer-events:none}
"""

PAGE = """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 -apple-system,"Segoe UI",Roboto,"Noto Sans",
"Helvetica Neue","Liberation Sans",Arial,sans-serif;-webkit-text-size-adjust:100%}
main,header,footer{max-width:980px;margin:0 auto;padding:0 40px}
header{padding-top:44px}
.brand{margin:0 0 22px;color:var(--soft);font-size:14px;letter-spacing:.02em}.brand b{color:var(--c0)}
h1{text-wrap:balance;font-size:32px;line-height:1.2;margin:0 0 10px;letter-spacing:-.015em;overflow-wrap:anywhere}
.verdict{font-size:20px;line-height:1.45;margin:0 0 28px;color:var(--ink);max-width:44em;overflow-wrap:anywhere}
h2{font-size:23px;line-height:1.25;margin:0 0 8px;letter-spacing:-.01em}
section{margin:52px 0 0}section>p{margin:0 0 14px;max-width:46em}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(196px,1fr));gap:14px;margin:0;padding:0}
.tile{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:16px 18px;display:flex;
flex-direction:column}
.tile dt{order:2;font-weight:600;font-size:14.5px;line-height:1.35}
.tile dd{margin:0}.tile .figure{order:1;font-size:34px;line-height:1.15;font-weight:700;letter-spacing:-.02em;
font-variant-numeric:tabular-nums;margin-bottom:4px;overflow-wrap:anywhere}
.tile .note{order:3;color:var(--soft);font-size:13.5px;line-height:1.4;margin-top:3px}
.verdict.bad{color:var(--bad)}.good .figure{color:var(--good)}.bad .figure{color:var(--bad)}
figure{margin:22px 0 30px}figcaption{display:flex;gap:0 22px;font-size:15px;
margin-bottom:8px}figcaption b{flex:none}
.readout{flex:1;min-width:0;overflow:hidden;white-space:nowrap;text-overflow:ellipsis;text-align:right;
color:var(--soft);font-size:13.5px;font-variant-numeric:tabular-nums}
.about{color:var(--soft);font-size:14px;margin:6px 0 6px;max-width:54em}
svg{display:block;width:100%;height:auto;overflow:visible}svg.narrow,.pair svg.wide{display:none}
.pair svg.narrow{display:block}
details{font-size:14px;color:var(--soft)}summary{cursor:pointer;width:max-content;max-width:100%}
.scroll{overflow:auto;margin:10px 0 18px}details .scroll{max-height:340px}table.ports{min-width:44em}
table.events td:first-child{white-space:nowrap}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:0 44px}.pair>*{min-width:0}.pair figure{margin-bottom:6px}
h3{font-size:16px;margin:22px 0 0}
table{border-collapse:collapse;font-size:14px;color:var(--ink);font-variant-numeric:tabular-nums}
th,td{text-align:left;vertical-align:top;padding:6px 22px 6px 0;border-bottom:1px solid var(--rule)}
th{font-weight:600;color:var(--soft)}thead th{position:sticky;top:0;background:var(--paper)}
table.numbers td,table.numbers th{text-align:right;padding:4px 22px 4px 0}
table.numbers td:first-child,table.numbers th:first-child{text-align:left}
table.facts{width:100%}table.facts td{overflow-wrap:anywhere}table.facts th{width:15em;padding-right:16px}
code,pre{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"Liberation Mono",monospace;font-size:.88em}
code{overflow-wrap:anywhere}
pre{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:11px 14px;margin:4px 0 4px;
overflow-x:auto;user-select:all}
.steps{list-style:none;padding:0;margin:14px 0 0}.steps li{margin:0 0 16px}
footer{margin-top:60px;padding-top:18px;padding-bottom:48px;color:var(--soft);font-size:13.5px}
footer dl{display:grid;grid-template-columns:max-content 1fr;gap:3px 18px;margin:0;border-top:1px solid var(--rule);
padding-top:18px}footer dd{margin:0;overflow-wrap:anywhere}
@media screen and (max-width:700px){main,header,footer{padding-left:18px;padding-right:18px}header{padding-top:26px}
h1{font-size:26px}.verdict{font-size:18px}svg.wide{display:none}svg.narrow{display:block}
figcaption{position:relative}.readout{position:absolute;top:100%;left:0;right:0;text-align:left;white-space:normal;
background:var(--paper)}section{margin-top:40px}
.tiles{grid-template-columns:1fr 1fr;gap:10px}.tile{padding:13px 14px}.tile .figure{font-size:27px}
.pair{grid-template-columns:1fr}table.facts th{width:9em}th,td{padding-right:14px}}
@media print{body{font-size:11pt}main,header,footer{max-width:none;padding-left:0;padding-right:0}header{padding-top:0}
details,.readout{display:none}pre{white-space:pre-wrap}figure,.tile,tr,pre{break-inside:avoid}h2,figcaption,section>p{break-after:avoid}
section{margin-top:26pt}.tiles{grid-template-columns:repeat(4,1fr)}.scroll{overflow:visible}table.ports{min-width:0}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""

CSS = COLOURS + DRAWING + PAGE

SCRIPT = """
for (const figure of document.querySelectorAll('figure')) {
  for (const svg of figure.querySelectorAll('svg')) {
    // The name moves from the title to an attribute, or it would pop up over the read-out.
    const title = svg.querySelector('title'); svg.setAttribute('aria-label', title.textContent); title.remove()
    const group = svg.querySelector('g[data-x]'); if (!group) continue
    const [start, end, low, high, log] = group.dataset.x.split(' ').map(Number)
    const [top, foot] = group.dataset.y.split(' ').map(Number)
    const at = log ? Math.log10 : v => v, readout = figure.querySelector('.readout')
    const head = [...figure.querySelectorAll('thead th')].map(th => th.textContent)
    const rows = [...figure.querySelectorAll('tbody tr')].map(tr => [...tr.cells].map(td => td.textContent))
    const place = row => start + (at(Number(row[0])) - at(low)) / (at(high) - at(low)) * (end - start)
    const cross = document.createElementNS(svg.namespaceURI, 'line')
    cross.setAttribute('class', 'cross'); cross.setAttribute('y1', top); cross.setAttribute('y2', foot)
    svg.addEventListener('pointermove', event => {
      const box = svg.getBoundingClientRect()
      const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width
      let near = null
      for (const row of rows) if (!near || Math.abs(place(row) - x) < Math.abs(place(near) - x)) near = row
      if (!near || x < start - 20 || x > end + 20) return
      cross.setAttribute('x1', place(near)); cross.setAttribute('x2', place(near)); group.append(cross)
      const values = near.slice(1).map((v, i) => v && head[i + 1] + ' ' + v).filter(Boolean)
      readout.textContent = head[0] + ' ' + near[0] + ': ' + values.join(', ')
    })
    svg.addEventListener('pointerleave', () => { cross.remove(); readout.textContent = '' })
  }
}
"""
