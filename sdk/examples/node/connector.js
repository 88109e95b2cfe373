'use strict';

// Teaches cotal-host to run echo-agent. What is in here is what a connector is about; plugin.js is the same for all.

const fs = require('node:fs');
const path = require('node:path');
const { execFile } = require('node:child_process');
const { promisify } = require('node:util');
const { Refusal, binary, decodeOptions, setEnv, environ, serveConnector } = require('./plugin.js');

const info = {
  name: 'echo-node',
  version: '0.1.0',
  capabilities: ['models'],
  connector: {
    requires: ['echo-agent', 'cotal-bridge'], // the host finds them, or refuses with the hint
    installHint: 'put echo-agent into the PATH of the host',
    supportsFreshStart: true,
    supportsModel: true,
    supportsPrompt: true,
    supportsPersona: true,
    readyBy: 'presence', // of the bridge, below
  },
};

// Pure: the same request gives the same launch. It starts nothing and writes only inside req.dir.
function buildLaunch(req) {
  const { greeting = 'hello' } = decodeOptions(req.launchOptions, { greeting: 'string' });
  if (greeting === '') {
    throw new Refusal('invalid', 'launchOptions.greeting is empty; leave it out for "hello"');
  }
  if (req.variant || req.resume || req.continueSession) { // the host refuses these for us; this is the backstop
    throw new Refusal('unsupported', 'echo-agent has no variants and no sessions');
  }
  const program = binary(req, 'echo-agent'); // resolved by the host, never by a PATH search of ours
  const bridge = binary(req, 'cotal-bridge');
  if (!path.isAbsolute(req.dir)) {
    throw new Refusal('invalid', `dir ${JSON.stringify(req.dir)} is no absolute path`);
  }
  // All refusals are behind us: now files may be written.
  const persona = path.join(req.dir, 'persona.txt');
  const prompt = path.join(req.dir, 'prompt.txt');
  try {
    fs.writeFileSync(persona, req.persona, { mode: 0o600 });
    fs.writeFileSync(prompt, req.prompt, { mode: 0o600 });
  } catch (err) {
    throw new Refusal('unavailable', `write launch file: ${err.message}`);
  }
  // The bridge joins the mesh as this seat, and gives the program its messages as lines of standard input.
  const args = [
    'run', '--messages', 'stdin', '--text', '--',
    program, '--greeting', greeting, '--persona-file', persona, '--prompt-file', prompt,
  ];
  if (req.model) {
    args.push('--model', req.model);
  }
  return { path: bridge, args, env: setEnv(req.baseEnv, { ECHO_NO_UPDATE: '1' }) };
}

// Asks the program. The signal ends it with whoever asked.
async function listModels(query, signal) {
  const program = binary(query, 'echo-agent');
  let text;
  try {
    const { stdout } = await promisify(execFile)(program, ['--list-models'], {
      env: environ(query.baseEnv), signal, timeout: 15_000, killSignal: 'SIGKILL', maxBuffer: 4 << 20,
    });
    text = stdout;
  } catch (err) {
    throw new Refusal('unavailable', `echo-agent --list-models: ${err.message}`, { retryable: true });
  }
  const ids = [...new Set(text.split('\n').map((line) => line.trim()).filter(Boolean))];
  if (ids.length === 0) {
    throw new Refusal('unavailable', 'echo-agent --list-models printed no model');
  }
  return { source: 'echo-agent --list-models', models: ids.map((id) => ({ id, name: id })) };
}

// A program that leaves servers, locks or files behind would have them removed here, once its seat is gone.
function reap() {
  return { outcome: 'REAP_OUTCOME_ABSENT', evidence: ['echo-agent keeps nothing outside its seat'] };
}

serveConnector({ info, buildLaunch, listModels, reap });
