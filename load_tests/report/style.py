"""Colours and type of pictures and pages, for light screens and dark ones."""

from __future__ import annotations

from typing import Final

LIGHT: Final = (
    "--ink:#1d2733;--soft:#5b6876;--line:#d9dfe5;--grid:#e9edf1;--paper:#fbfcfd;--card:#ffffff;--shade:#eef2f5;"
    "--c0:#1f6f8b;--c1:#e08a3c;--c2:#5b9a68;--c3:#b5485d;--c4:#7a68ae;--c5:#8a7a5c;--c6:#3f8fd1;--c7:#c777a5;"
    "--soft0:#1f6f8b;--soft1:#58a3bb;--soft2:#a3cfdd;--hover:rgba(31,111,139,.10)"
)
DARK: Final = (
    "--ink:#e4eaf0;--soft:#98a6b4;--line:#33404d;--grid:#26313c;--paper:#11171d;--card:#182028;--shade:#1f2933;"
    "--c0:#5ab4d0;--c1:#f0a762;--c2:#85c493;--c3:#e57c90;--c4:#ab9be0;--c5:#bfae8b;--c6:#7cbcf0;--c7:#e3a3c8;"
    "--soft0:#8ad5ec;--soft1:#4a9cb8;--soft2:#2f6578;--hover:rgba(138,213,236,.12)"
)
_COLOURS: Final = "".join(
    f".{name}{{--own:var(--{name})}}" for name in (*(f"c{at}" for at in range(8)), "soft0", "soft1", "soft2")
)
CHART_RULES: Final = (
    _COLOURS
    + ".chart text{font:13px system-ui,-apple-system,'Segoe UI',sans-serif;fill:var(--ink)}"
    + ".chart text.tick,.chart text.name{fill:var(--soft);font-size:12px;font-variant-numeric:tabular-nums}"
    + ".chart path{fill:none}.chart .grid{stroke:var(--grid)}.chart .axis{stroke:var(--line)}"
    + ".chart .line{stroke:var(--own);stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
    + ".chart .dashed{stroke-dasharray:5 5}.chart .area{fill:var(--own);opacity:.13}"
    + ".chart .bar,.chart .swatch{fill:var(--own)}.chart .shade{fill:var(--shade)}"
    + ".chart .mark{stroke:var(--ink);stroke-dasharray:3 3}.chart .hit{fill:transparent}"
    + ".chart .hit:hover{fill:var(--hover)}"
)
CHART_CSS: Final = f".chart{{{LIGHT}}}@media(prefers-color-scheme:dark){{.chart{{{DARK}}}}}{CHART_RULES}"
"""For a picture that is a file of its own."""
PAGE_CSS: Final = (
    f":root{{color-scheme:light dark;{LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{DARK}}}}}{CHART_RULES}"
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif}
main{max-width:1180px;margin:0 auto;padding:2.5rem 1.5rem 4rem}
h1{font-size:2rem;line-height:1.2;margin:0 0 .4rem;font-weight:650;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:1.25rem;margin:3rem 0 .3rem;font-weight:650}
p{margin:.2rem 0 1rem;color:var(--soft);max-width:46rem;overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:.8rem;margin:1.6rem 0 0;padding:0}
.tile,figure{background:var(--card);border:1px solid var(--line);border-radius:12px}
.tile{padding:.9rem 1rem}
.tile dt{font-size:.85rem;color:var(--soft)}
.tile dd{margin:0;font-size:1.7rem;font-weight:600;font-variant-numeric:tabular-nums;line-height:1.3}
.tile small{display:block;font-size:.8rem;font-weight:400;color:var(--soft);line-height:1.35}
.figures{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:1rem}
figure{margin:0;padding:1rem 1rem .7rem;min-width:0}
figcaption{font-weight:600;margin-bottom:.5rem}
figure svg{display:block;width:100%;height:auto}
details{margin-top:.5rem;font-size:.85rem}
summary{cursor:pointer;color:var(--soft)}
.wide{overflow-x:auto;max-height:26rem}
.whole{max-height:none}
table{border-collapse:collapse;width:100%;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{padding:.35rem .7rem .35rem 0;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
th:first-child,td:first-child{text-align:left}
thead th{color:var(--soft);font-weight:500}
tbody th{font-weight:400}
.pairs td{white-space:normal;overflow-wrap:anywhere;text-align:left}
.pairs th{text-align:left;color:var(--soft);width:13rem}
#tip{position:fixed;pointer-events:none;background:var(--ink);color:var(--paper);padding:.3rem .6rem;border-radius:6px;
font-size:.82rem;max-width:min(20rem,80vw);z-index:1;font-variant-numeric:tabular-nums}
@media(max-width:760px){main{padding:1.4rem .9rem 3rem}.figures{grid-template-columns:minmax(0,1fr)}h1{font-size:1.5rem}
.tiles{grid-template-columns:1fr 1fr}.tile dd{font-size:1.35rem}figure{padding:.8rem .6rem .5rem}
.pairs th{width:8rem;white-space:normal}}
@media print{body{background:#fff}details{display:none}figure,.tile{break-inside:avoid}}
"""
)
TIPS_JS: Final = """
const tip=document.getElementById('tip');
for(const hit of document.querySelectorAll('.hit')){const title=hit.firstElementChild;
hit.dataset.tip=title.textContent;title.remove()}
document.addEventListener('pointermove',event=>{const words=event.target.dataset&&event.target.dataset.tip;
tip.hidden=!words;if(!words)return;tip.textContent=words;
const left=Math.min(event.clientX+14,innerWidth-tip.offsetWidth-8);
tip.style.left=Math.max(8,left)+'px';tip.style.top=Math.max(8,event.clientY-tip.offsetHeight-12)+'px'});
"""
"""What a column of a picture says follows the pointer; without scripts the browser shows it by itself."""
