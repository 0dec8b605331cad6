// Keuss (backend pl-mongo) under load: `node keuss.js URI push|reserve CALLERS SECONDS`, run in the folder that holds it.
// Prints one line of JSON: how many items went through, in how many seconds.
'use strict';

const path = require ('path');
const { promisify } = require ('util');

const [uri, what, callers, seconds] = process.argv.slice (2);
const load = name => require (path.join (process.cwd (), 'node_modules', name));
const factory = promisify (load ('keuss/backends/pl-mongo'));

// the order that mongoq's benchmark pushes: 200 bytes as BSON
const payload = JSON.parse (process.env.PAYLOAD);

async function loop (end, step) {
  let n = 0;
  const caller = async () => {
    while (performance.now () < end && await step ()) n++;
  };
  await Promise.all (Array.from ({ length: Number (callers) }, caller));
  return n;
}

async function main () {
  const made = await factory ({
    url: uri,
    name: 'bench',
    // within the process: those that go through the database cost commands, and two processes fail to make them
    signaller: { provider: load ('keuss/signal/local') },
    stats: { provider: load ('keuss/stats/mem') }
  });
  await promisify (made.async_init.bind (made)) ();
  const queue = await promisify (made.queue.bind (made)) ('bench', {});
  const push = promisify (queue.push.bind (queue));
  const pop = promisify (queue.pop.bind (queue));
  const ok = promisify (queue.ok.bind (queue));
  const length = promisify (queue.size.bind (queue));
  await push (payload, {});

  if (what === 'reserve') {
    const wanted = Number (process.env.ITEMS);
    let left = wanted;
    await loop (Infinity, async () => left-- > 0 && (await push (payload, {}), true));
  }
  const step = {
    push: async () => (await push (payload, {}), true),
    reserve: async () => {
      const item = await pop ('bench', { reserve: true, timeout: 1000 });
      await ok (item);
      return true;
    }
  } [what];
  const began = performance.now ();
  const items = await loop (began + 1000 * Number (seconds), step).catch (error => {
    throw new Error (`the queue ran empty, or: ${error}`);
  });
  const took = (performance.now () - began) / 1000;
  console.log (JSON.stringify ({ items, seconds: took, left: await length () }));
  process.exit (0);
}

main ().catch (error => {
  console.error (String (error));
  process.exit (1);
});
