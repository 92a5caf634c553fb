// The page's script: chooses the device, fills the tables, and shows a record in the panel.
'use strict';
addEventListener('error', event => { document.body.dataset.errors = event.message; });
const DATA = JSON.parse(document.getElementById('data').textContent);
const panel = document.getElementById('panel'), device = document.getElementById('device');
const numbers = new Map(DATA.records.map((record, i) => [record[0], i]));
const STEP = 25;  // rows that a table shows at first, and that "Show more" adds

function element(tag, text = '', attributes = {}) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.textContent = text;
  return made;
}
// The fields of a record, in the order in which the class Records of report.py writes them.
function fields(i) {
  const [id, device, experiment, file, when, [axes, ...values], ...rest] = DATA.records[i];
  const pairs = DATA.axes[axes].map((axis, k) => [axis, values[k]]);
  const common = {id, device, experiment: DATA.experiments[experiment], file: DATA.files[file], when: DATA.times[when], pairs,
                  where: pairs.map(([axis, value]) => `${axis}=${value}`).join(' ')};
  if (i >= DATA.findings) {
    const [status, us, low, high, tflops, share, error, compile] = rest;
    return {...common, status: DATA.status[status], us, low, high, tflops, share, error, compile};
  }
  const [state, claim, title, figure, next, wrong] = rest;
  const [name, text, metric, holds] = DATA.claims[claim];
  return {...common, state, name, text, metric, holds, title, figure, next, wrong};
}
function cells(i) {
  const r = fields(i);
  if (i < DATA.findings) return [r.state, r.name, r.title, r.figure, r.next, r.holds, r.wrong];
  // Names the case as label() of report.py does, without the axes that have one value in all cases of the experiment.
  const all = Object.fromEntries(r.pairs), varying = DATA.varying[r.experiment];
  const named = r.pairs.filter(([axis, value]) => varying.includes(axis) && DATA.off[axis] !== value &&
    !(axis.startsWith('kv_') && all[axis.replace('kv_', 'q_')] === value));
  const word = ([axis, value]) => axis === 'causal' ? (value ? 'causal' : 'full') : `${axis} ${value}`;
  return [r.experiment, named.map(word).join(', '), r.status, r.us,
          r.us && +(50 * (r.high - r.low) / r.us).toFixed(1), r.tflops, r.share];
}
const quoted = word => /^[\w@%+=:,.\/-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
// Returns the command that measures a record again, for the folder that has the record's file. The command unpacks a
// gzip file first, because the experiments cannot read gzip.
function command(i) {
  const r = fields(i), file = r.file.replace(/\.gz$/, '');
  const option = i < DATA.findings ? '--out' : '--measurements';
  return (file === r.file ? '' : `zcat ${quoted(r.file)} > ${quoted(file)} && `) +
    `${quoted(r.experiment)} ${option} ${quoted(file)} --replay ${quoted(r.id)}`;
}
const time = r => r.us && `${r.us} us [${r.low}, ${r.high}]`;

function show(i) {
  const r = fields(i), list = element('dl');
  const rows = i < DATA.findings
    ? [['verdict', r.state], ['claim', `${r.name}: ${r.text}`], ['figure', `${r.metric} = ${r.figure}`],
       ['next run', r.next], ['holds if', r.holds], ['probability of a wrong verdict', r.wrong]]
    : [['status', r.status], ['time', time(r)], ['rate', r.tflops && `${r.tflops} TFLOPS`],
       ['share of the ceiling', r.share && `${r.share} %`], ['largest error', r.error],
       ['compilation', r.compile && `${r.compile} ms`]];
  rows.push(['experiment', r.experiment], ['device', DATA.devices[r.device]], ['case', r.where], ['measured', r.when],
            ['file', r.file], ['record', r.id]);
  for (const [name, value] of rows) if (value || value === 0) list.append(element('dt', name), element('dd', value));
  const copy = element('button', 'Copy the command');
  copy.onclick = () => navigator.clipboard.writeText(command(i)).then(() => { copy.textContent = 'Copied'; });
  panel.replaceChildren(element('button', 'Close', {className: 'close', onclick: () => panel.close()}),
                        element('h2', i < DATA.findings ? r.title : 'Measurement', {id: 'panel-title'}), list,
                        element('p', 'This command measures it again:'), element('pre', command(i)), copy);
  if (!panel.open) panel.showModal();
}

class Table {
  constructor(name, first, last) {
    Object.assign(this, {first, last, limit: STEP, words: [], column: null, up: true});
    this.at = document.getElementById(name);
    this.box = document.querySelector(`[data-table=${name}]`);
    this.more = document.querySelector(`[data-more=${name}]`);
    this.heads = [...this.at.tHead.rows[0].cells];
    this.box.oninput = () => this.filter(this.box.value);
    this.more.onclick = () => { this.limit += STEP; this.draw(); };
    this.heads.forEach((head, column) => { head.firstChild.onclick = () => this.sort(column); });
  }
  filter(text) {
    this.box.value = text;
    this.words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.draw();
  }
  sort(column) {
    this.up = this.column !== column || !this.up;
    this.column = column;
    this.heads.forEach((head, i) => i === column ? head.setAttribute('aria-sort', this.up ? 'ascending' : 'descending')
                                                 : head.removeAttribute('aria-sort'));
    this.draw();
  }
  draw() {
    const own = [];
    for (let i = this.first; i < this.last; ++i) {
      if (DATA.records[i][1] !== +device.value) continue;
      const values = cells(i), text = [...values, fields(i).where, fields(i).id].join(' ').toLowerCase();
      if (this.words.every(word => text.includes(word))) own.push([i, values]);
    }
    if (this.column !== null) {
      const key = ([, values]) => values[this.column] ?? -Infinity;
      own.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b)) * (this.up ? 1 : -1));
    }
    const titles = this.heads.map(head => head.textContent);
    this.at.tBodies[0].replaceChildren(...own.slice(0, this.limit).map(([i, values]) => {
      const row = element('tr', '', {tabIndex: 0});
      row.dataset.r = i;
      values.forEach((value, column) => {
        const cell = element('td', value ?? '', {className: column === 0 && i < DATA.findings ? value : ''});
        cell.dataset.h = titles[column];
        row.append(cell);
      });
      return row;
    }));
    this.at.caption.querySelector('span').textContent = `${Math.min(own.length, this.limit)} of ${own.length}`;
    this.more.hidden = own.length <= this.limit;
  }
}
const tables = {findings: new Table('findings', 0, DATA.findings),
                measurements: new Table('measurements', DATA.findings, DATA.records.length)};

function choose() {
  for (const block of document.querySelectorAll('[data-device]')) block.hidden = block.dataset.device !== device.value;
  for (const part of document.querySelectorAll('main > section')) {
    const blocks = [...part.querySelectorAll('[data-device]')];
    part.hidden = blocks.length > 0 && blocks.every(block => block.hidden);
    document.querySelector(`nav a[href="#${part.firstChild.id}"]`).hidden = part.hidden;
  }
  for (const table of Object.values(tables)) table.draw();
}
device.onchange = choose;

// The part of the address after # may say what the page shows: #device=1&findings=bf16+d128&sort=measurements.5&r-ID
function follow() {
  for (const part of decodeURIComponent(location.hash.slice(1).replaceAll('+', ' ')).split('&')) {
    const [name, value] = part.split('=');
    if (name === 'device' && DATA.devices[value]) { device.value = value; choose(); }
    if (Object.hasOwn(tables, name)) tables[name].filter(value ?? '');
    if (name === 'sort') { const [table, column] = value.split('.'); tables[table]?.sort(+column); }
    if (name.startsWith('r-') && numbers.has(name.slice(2))) {
      const i = numbers.get(name.slice(2));
      device.value = DATA.records[i][1];
      choose();
      show(i);
    }
  }
}
addEventListener('hashchange', follow);
panel.addEventListener('close', () => { if (location.hash.includes('r-')) history.replaceState(null, '', '#'); });
panel.addEventListener('click', event => { if (event.target === panel) panel.close(); });
const number = event => event.target.closest?.('[data-r]')?.dataset.r;
document.addEventListener('click', event => { if (number(event) && !event.target.closest('a')) show(+number(event)); });
document.addEventListener('keydown', event => {
  if (event.key !== 'Enter' || !event.target.matches('tr[data-r]')) return;
  event.preventDefault();  // without this call the same key would also press the panel's first button
  show(+number(event));
});
choose();
follow();
document.body.dataset.ready = 1;
