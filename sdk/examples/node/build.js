'use strict';

// Makes the plugin: one file with everything in it. A host executes a copy of that file in memory, whose digest it
// knows; nothing that lies beside the file would be found, or vouched for.

const fs = require('node:fs');
const path = require('node:path');
const esbuild = require('esbuild');
const protobuf = require('protobufjs');

const out = process.argv[2] ?? path.join(__dirname, 'cotal-connector-echo-node');
const searched = [path.join(__dirname, '../../proto'), path.join(__dirname, 'proto')];

// The contract as JSON, so that the plugin parses no .proto when it starts.
function contract() {
  const root = new protobuf.Root();
  root.resolvePath = (_from, name) => searched.map((dir) => path.join(dir, name)).find(fs.existsSync) ?? name;
  root.loadSync([
    'cotal/plugin/v1/plugin.proto', 'cotal/plugin/v1/connector.proto', 'go-plugin.proto', 'health.proto', 'status.proto',
  ]);
  return JSON.stringify(root.toJSON());
}

const result = esbuild.buildSync({
  entryPoints: [path.join(__dirname, 'connector.js')],
  bundle: true,
  platform: 'node',
  target: 'node20',
  legalComments: 'inline',
  nodePaths: (process.env.NODE_PATH ?? '').split(path.delimiter).filter(Boolean), // where packages lie elsewhere
  define: { CONTRACT: contract() },
  write: false,
});

// The interpreter is named by its path: a plugin that is installed is asked who it is in an empty environment. The
// flag is for the copy in memory, whose name (/proc/self/fd/3) is a link to nothing that has a path.
const text = `#!${process.execPath} --preserve-symlinks-main\n${result.outputFiles[0].text}`;
fs.mkdirSync(path.dirname(out), { recursive: true });
fs.rmSync(out, { force: true }); // not written into: an older one may be running
fs.writeFileSync(out, text, { mode: 0o755 });
console.log(out);
