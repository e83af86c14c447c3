"""The style sheet of report.html: no fonts, scripts or files from elsewhere."""

STYLE = """
:root { --ink: #202124; --soft: #5f6368; --line: #e3e6ea; --paper: #ffffff; --ground: #f6f7f9; --blue: #1f5fa8;
  --yes: #2e7d57; --no: #b7791f; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 28px; line-height: 1.25; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 0 0 12px; }
.subtitle { color: var(--soft); margin: 6px 0 24px; }
.warning { background: #fdecea; border: 1px solid #f3c1bb; border-radius: 10px; padding: 10px 18px; font-weight: 600; }
.verdict, section, .tile, figure { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; }
.verdict { padding: 18px 22px; border-left: 6px solid var(--no); }
.verdict.yes { border-left-color: var(--yes); }
.verdict p { margin: 0; }
.verdict .gate { margin-top: 10px; }
.verdict .headline { font-size: 18px; font-weight: 600; }
.verdict ul { margin: 4px 0 0; padding-left: 20px; color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 14px; margin: 18px 0; }
.tile { padding: 14px 18px; display: flex; flex-direction: column; }
.tile .name { color: var(--soft); font-size: 13px; }
.tile .value { font-size: 28px; font-weight: 650; font-variant-numeric: tabular-nums; color: var(--blue); }
.interval { color: var(--soft); font-size: 0.87em; font-variant-numeric: tabular-nums; white-space: nowrap; }
.tile .interval { white-space: normal; }
.stacked .interval { display: block; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(400px, 1fr)); gap: 14px; margin-bottom: 18px; }
figure { margin: 0; padding: 14px 16px 8px; }
figcaption { font-weight: 600; margin-bottom: 6px; }
figure img { width: 100%; height: auto; display: block; }
section { padding: 18px 22px; margin-top: 18px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
thead th { color: var(--soft); font-size: 13px; font-weight: 600; border-bottom-width: 2px; }
tbody th { font-weight: 500; white-space: nowrap; }
tbody tr:last-child > * { border-bottom: 0; }
pre { background: var(--ground); border: 1px solid var(--line); border-radius: 6px; padding: 10px 14px;
  margin: 0 0 10px; overflow-x: auto; font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 0; }
dt { font-weight: 500; } dd { margin: 0; color: var(--soft); }
@media (max-width: 640px) { .figures { grid-template-columns: 1fr; } dl { grid-template-columns: 1fr; } }
@media print {
  body { background: none; } main { max-width: none; padding: 0; } figure, section { break-inside: avoid; }
}
"""
