// Empties a queue of Keuss in a process of its own: `node keuss.js URI BACKEND ITEMS CALLERS`, run in the folder that
// holds it. It pushes them, says that it is ready, begins when it reads a line, and prints what it did as JSON:
// how many were acknowledged and in what time, and after what time none of them was in the database any more.
'use strict';

const path = require ('path');
const { once } = require ('events');
const { promisify } = require ('util');

const [uri, backend, number, callers] = process.argv.slice (2);
const load = name => require (path.join (process.cwd (), 'node_modules', name));
const factory = promisify (load (`keuss/backends/${backend}`));
const payload = JSON.parse (process.env.PAYLOAD);
const items = Number (number);

async function each (step) {
  let left = items;
  const caller = async () => {
    while (left-- > 0) await step ();
  };
  await Promise.all (Array.from ({ length: Number (callers) }, caller));
}

async function until (length, wanted) {
  while ((await length ()) !== wanted) await new Promise (done => setTimeout (done, 10));
}

async function main () {
  const made = await factory ({
    url: uri,
    name: 'bench',
    // within the process: those that go through the database cost commands
    signaller: { provider: load ('keuss/signal/local') },
    stats: { provider: load ('keuss/stats/mem') }
  });
  if (made.async_init) await promisify (made.async_init.bind (made)) ();
  const queue = await promisify (made.queue.bind (made)) ('bench', {});
  const [push, pop, ok, length] = ['push', 'pop', 'ok', 'totalSize'].map (name => promisify (queue[name].bind (queue)));
  await each (() => push (payload, {}));
  await until (length, items);

  console.log ('ready');
  await once (process.stdin, 'data');
  const began = performance.now ();
  await each (async () => {
    const item = await pop ('bench', { reserve: true, timeout: 10000 });
    if (!await ok (item)) throw new Error ('an item was not committed');
  });
  const ended = performance.now ();
  await until (length, 0);
  const written = performance.now ();
  const seconds = (ended - began) / 1000;
  console.log (JSON.stringify ({ items, seconds, seconds_written: (written - began) / 1000 }));
  process.exit (0);
}

main ().catch (error => {
  console.error (error instanceof Error ? error.message : JSON.stringify (error));
  process.exit (1);
});
