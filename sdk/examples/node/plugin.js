'use strict';

// What makes a Node program a plugin of cotal-host: go-plugin's handshake and services, mutual TLS, errors that keep
// their meaning, and an end that comes with the host's. Nothing in here knows one agent program.

const crypto = require('node:crypto');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');

const COOKIE = ['COTAL_PLUGIN_COOKIE', 'b3d6f0a86e0f4a0d9f2f5c1d7e4b8a93']; // no secret: see sdk.Handshake
const CORE_PROTOCOL = 1; // go-plugin's
const CONTRACT_VERSION = 1; // cotal.plugin.v1
const SDK_VERSION = '0.1.0'; // of the contract's files that this was written against
const DESCRIBE_FLAG = '--cotal-describe';
const MAX_MESSAGE = 4 << 20; // bytes, in both directions
const MAX_DETAIL = 8 << 10; // bytes of an error's text: it travels in a header
const BATCH = 1 << 20; // bytes of models in one message

// A plugin is gone 2 s after its host: 1.5 s for calls in flight, 0.3 s for the last answers to leave.
const DRAIN_MS = 1500;
const FLUSH_MS = 300;
const EXIT_MS = 1900;

// The codes of the contract that a connector needs, each with what a peer sees that reads no details.
const GRPC_CODES = { invalid: 3, not_found: 5, too_large: 8, unproven: 10, unsupported: 12, internal: 13, unavailable: 14 };

// Refusal tells the person who asked what is wrong. Nothing has happened, unless outcome says otherwise.
class Refusal extends Error {
  constructor(code, detail, { outcome = 'OUTCOME_NOT_EXECUTED', retryable = false } = {}) {
    super(detail);
    Object.assign(this, { code, outcome, retryable });
  }
}

// decodeOptions refuses an option that is not known and a value of another type, so that a typing error never
// launches something else than was meant. kinds: name to 'string', 'number' or 'boolean'.
function decodeOptions(options, kinds) {
  for (const [name, value] of Object.entries(options)) {
    if (!Object.hasOwn(kinds, name)) {
      throw new Refusal('invalid', `unknown launch option ${JSON.stringify(name)}; this connector takes ${Object.keys(kinds).join(', ')}`);
    }
    if (typeof value !== kinds[name]) {
      throw new Refusal('invalid', `launchOptions.${name} must be a ${kinds[name]}, not ${value === null ? 'nothing' : `a ${typeof value}`}`);
    }
  }
  return options;
}

// binary is the absolute path of a program that the connector requires, as the host found it.
function binary(req, name) {
  if (!Object.hasOwn(req.binaries, name)) {
    throw new Refusal('not_found', `the host gave no path for "${name}"; the connector must name it in requires`);
  }
  return req.binaries[name];
}

// setEnv gives a list of NAME=value with some of them set, in the same order every time.
function setEnv(list, set) {
  const kept = list.filter((kv) => !Object.hasOwn(set, kv.split('=', 1)[0]));
  return [...kept, ...Object.entries(set).map(([name, value]) => `${name}=${value}`)];
}

// environ is such a list as an object.
function environ(list) {
  const pairs = list.map((kv) => [kv.slice(0, kv.indexOf('=')), kv.slice(kv.indexOf('=') + 1)]);
  return Object.fromEntries(pairs.filter(([name]) => name !== ''));
}

// log writes a record that the host logs with its level and fields.
function log(level, message, fields = {}) {
  process.stderr.write(`${JSON.stringify({ '@level': level, '@message': message, ...fields })}\n`);
}

// mint makes the certificate of this process. The key is made by OpenSSL; node-forge puts it into a certificate, which
// Node itself cannot. It is its own authority, because the host trusts exactly this one.
function mint() {
  const forge = require('node-forge');
  const key = crypto.generateKeyPairSync('rsa', {
    modulusLength: 2048,
    publicKeyEncoding: { type: 'spki', format: 'pem' },
    privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
  });
  const cert = forge.pki.createCertificate();
  cert.publicKey = forge.pki.publicKeyFromPem(key.publicKey);
  cert.serialNumber = `01${crypto.randomBytes(15).toString('hex')}`; // begins with 01: a positive number
  cert.validity.notBefore = new Date(Date.now() - 60_000);
  cert.validity.notAfter = new Date(Date.now() + 10 * 365 * 24 * 3600 * 1000);
  const name = [{ name: 'commonName', value: 'localhost' }];
  cert.setSubject(name);
  cert.setIssuer(name);
  cert.setExtensions([
    { name: 'basicConstraints', cA: true, critical: true },
    { name: 'keyUsage', critical: true, digitalSignature: true, keyEncipherment: true, keyCertSign: true },
    { name: 'extKeyUsage', serverAuth: true, clientAuth: true },
    { name: 'subjectAltName', altNames: [{ type: 2, value: 'localhost' }] }, // the name that the host asks for
  ]);
  cert.sign(forge.pki.privateKeyFromPem(key.privateKey), forge.md.sha256.create());
  const der = Buffer.from(forge.asn1.toDer(forge.pki.certificateToAsn1(cert)).getBytes(), 'binary');
  return { key: Buffer.from(key.privateKey), cert: Buffer.from(forge.pki.certificateToPem(cert)), der };
}

// serveConnector is the last statement of a connector. It answers --cotal-describe, explains itself to a person, or
// serves until the host is done with it.
//
//   info                      name, version, capabilities and connector (the facts), named as in --cotal-describe
//   buildLaunch(req)          a LaunchSpec; req has the fields of BuildLaunchRequest in camelCase, and launchOptions
//   listModels(query, signal) {source, models}, or Refusal 'unavailable'; optional
//   reap(req)                 a ReapReport
//   configure(table, host)    takes [plugin.config] or throws Refusal 'invalid'; optional
function serveConnector(connector) {
  const info = { kind: 'connector', sdkVersion: SDK_VERSION, protocolMinor: 0, ...connector.info };
  const self = `cotal-connector-${info.name}`;
  if (process.argv.length === 3 && process.argv[2] === DESCRIBE_FLAG) {
    process.stdout.write(`${JSON.stringify({ ...info, protocol: CONTRACT_VERSION }, null, 2)}\n`);
    return;
  }
  if (process.env[COOKIE[0]] !== COOKIE[1]) {
    process.stderr.write(`${self} is a plugin of cotal-host (connector "${info.name}", version ${info.version}); it does nothing on its own.\n\n` +
      `Install it with: cotal ext install ./${self}\nTo see what it offers: ${self} ${DESCRIBE_FLAG}\n`);
    process.exitCode = 1;
    return;
  }
  console.log = console.info = console.debug = console.error; // standard output is the host's
  process.on('uncaughtException', (err) => {
    process.stderr.write(`panic: ${err.stack}\n`); // the host shows lines from "panic:" on as errors
    process.exit(2);
  });
  new Plugin(connector, info).serve();
}

class Plugin {
  constructor(connector, info) {
    const grpc = require('@grpc/grpc-js');
    const protobuf = require('protobufjs');
    const loader = require('@grpc/proto-loader');
    Object.assign(this, { connector, info, grpc, running: 0, ending: false, streams: new Set() });
    const json = CONTRACT; // put here by build.js
    this.api = grpc.loadPackageDefinition(loader.fromJSON(json, { enums: String, longs: Number, defaults: true, arrays: true, objects: true }));
    const root = protobuf.Root.fromJSON(json);
    this.Status = root.lookupType('google.rpc.Status');
    this.ErrorDetail = root.lookupType('cotal.plugin.v1.ErrorDetail');
  }

  serve() {
    const { grpc } = this;
    process.umask(0o077);
    if (process.argv[1] === '/proc/self/fd/3') {
      fs.closeSync(3); // this program: children would keep it in memory
    }
    const clientCert = process.env.PLUGIN_CLIENT_CERT;
    const dir = process.env.PLUGIN_UNIX_SOCKET_DIR || os.tmpdir();
    // What the host told this process alone: what we start must not take itself for a plugin.
    for (const name of [COOKIE[0], 'PLUGIN_CLIENT_CERT', 'PLUGIN_PROTOCOL_VERSIONS', 'PLUGIN_UNIX_SOCKET_DIR', 'PLUGIN_MIN_PORT', 'PLUGIN_MAX_PORT']) {
      delete process.env[name];
    }
    if (!clientCert) {
      process.stderr.write('the host gave no certificate (PLUGIN_CLIENT_CERT); this plugin speaks to a host over mutual TLS alone\n');
      process.exit(1);
    }
    // Before anything that takes time: the host may be gone by then.
    process.stdin.resume();
    process.stdin.on('end', () => this.end('end of standard input'));
    process.stdin.on('error', () => this.end('end of standard input'));
    process.on('SIGTERM', () => this.end('SIGTERM'));
    for (const signal of ['SIGINT', 'SIGHUP']) {
      process.on(signal, () => {}); // a Ctrl-C is the host's to act on
    }

    const own = mint();
    this.server = new grpc.Server({
      'grpc.max_receive_message_length': MAX_MESSAGE, 'grpc.max_send_message_length': MAX_MESSAGE, 'grpc.enable_channelz': 0,
    });
    this.addServices();
    this.socket = path.join(dir, `p${crypto.randomBytes(6).toString('hex')}`);
    const mutual = grpc.ServerCredentials.createSsl(Buffer.from(clientCert), [{ private_key: own.key, cert_chain: own.cert }], true);
    this.server.bindAsync(`unix:${this.socket}`, mutual, (err) => {
      if (err) {
        process.stderr.write(`listen at ${this.socket}: ${err.message}\n`);
        process.exit(1);
      }
      const cert = own.der.toString('base64').replace(/=+$/, '');
      process.stdout.write(`${CORE_PROTOCOL}|${CONTRACT_VERSION}|unix|${this.socket}|grpc|${cert}\n`);
    });
  }

  addServices() {
    const { api, connector, info } = this;
    this.server.addService(api.grpc.health.v1.Health.service, {
      Check: (call, done) => (['', 'plugin'].includes(call.request.service)
        ? done(null, { status: 'SERVING' })
        : done({ code: this.grpc.status.NOT_FOUND, details: 'unknown service' })),
    });
    this.server.addService(api.plugin.GRPCController.service, {
      Shutdown: (_call, done) => {
        done(null, {});
        this.end('Shutdown');
      },
    });
    this.server.addService(api.plugin.GRPCStdio.service, { StreamStdio: (call) => this.keep(call) });
    this.server.addService(api.plugin.GRPCBroker.service, { StartStream: (call) => this.keep(call) });
    this.server.addService(api.cotal.plugin.v1.PluginService.service, {
      Describe: this.unary('Describe', () => info),
      Configure: this.unary('Configure', (req) => this.configure(req)),
    });
    const models = async (query, signal) => {
      if (!connector.listModels) {
        throw new Refusal('unavailable', 'this connector has no model catalogue');
      }
      return connector.listModels(query, signal);
    };
    this.server.addService(api.cotal.plugin.v1.ConnectorService.service, {
      BuildLaunch: this.unary('BuildLaunch', async (req) => ({ spec: await connector.buildLaunch(withOptions(req)) })),
      ListModels: this.unary('ListModels', models),
      StreamModels: (call) => this.streamModels(call, models),
      ReapLeftovers: this.unary('ReapLeftovers', async (req) => ({ report: await connector.reap(withOptions(req)) })),
    });
  }

  // keep holds a stream of go-plugin's open that nothing is ever sent on, until the process ends.
  keep(call) {
    this.streams.add(call);
    const forget = () => this.streams.delete(call);
    call.on('cancelled', forget);
    call.on('error', forget);
    call.on('data', () => {});
    call.on('end', () => {
      forget();
      call.end();
    });
  }

  async configure(req) {
    const table = object('the configuration', req.configJson);
    if (this.connector.configure) {
      await this.connector.configure(table, req);
    } else if (Object.keys(table).length > 0) {
      throw new Refusal('invalid', `unknown key ${JSON.stringify(Object.keys(table)[0])}: this plugin takes no configuration, remove its [plugin.config] table`);
    }
    return {};
  }

  // unary counts the call, gives it a signal that aborts with its caller, and answers what work returns or throws.
  unary(method, work) {
    return async (call, done) => {
      if (this.ending) {
        done({ code: this.grpc.status.UNAVAILABLE, details: 'the plugin is shutting down' });
        return;
      }
      this.running++;
      try {
        done(null, await work(call.request, signalOf(call)));
      } catch (err) {
        done(this.status(method, err));
      } finally {
        this.left();
      }
    };
  }

  // streamModels sends a catalogue in messages below the limit. It is whole before the first one is sent.
  async streamModels(call, models) {
    if (this.ending) {
      call.emit('error', { code: this.grpc.status.UNAVAILABLE, details: 'the plugin is shutting down' });
      return;
    }
    this.running++;
    try {
      const all = await models(call.request.query ?? { baseEnv: [], binaries: {} }, signalOf(call));
      let batch = { source: all.source, models: [] };
      let size = 0;
      for (const model of all.models) {
        const n = Buffer.byteLength(JSON.stringify(model)); // more than it takes on the wire
        if (size > 0 && size + n > BATCH) {
          call.write(batch);
          batch = { models: [] };
          size = 0;
        }
        batch.models.push(model);
        size += n;
      }
      call.write(batch); // also an empty catalogue: its source is known
      call.end();
    } catch (err) {
      call.emit('error', this.status('ListModels', err));
    } finally {
      this.left();
    }
  }

  // status is an error as it travels: the code and the sentence in the details, so that the host knows it again.
  status(method, err) {
    let refusal = err;
    if (!(err instanceof Refusal)) {
      process.stderr.write(`panic: in ${method}: ${err?.stack ?? err}\n`);
      refusal = new Refusal('internal', `${method}: ${err?.message ?? err} (the stack is in the log of the plugin)`, { outcome: 'OUTCOME_UNKNOWN' });
    }
    const detail = bounded(refusal.message);
    const code = GRPC_CODES[refusal.code];
    const wrapped = this.ErrorDetail.encode(this.ErrorDetail.fromObject({
      code: refusal.code, outcome: refusal.outcome, retryable: refusal.retryable, detail,
    })).finish();
    const metadata = new this.grpc.Metadata();
    metadata.set('grpc-status-details-bin', Buffer.from(this.Status.encode(this.Status.fromObject({
      code, message: detail, details: [{ type_url: 'type.googleapis.com/cotal.plugin.v1.ErrorDetail', value: wrapped }],
    })).finish()));
    return { code, details: detail, metadata };
  }

  left() {
    this.running--;
    if (this.running === 0) {
      this.drained?.();
    }
  }

  // end lets calls in flight finish, sends the last answers, and leaves.
  end(cause) {
    if (this.ending) {
      return;
    }
    this.ending = true;
    setTimeout(() => this.leave(), EXIT_MS);
    log('debug', 'plugin ends', { cause });
    if (!this.socket) {
      this.leave(); // asked to end before it served anything
    }
    let flushed = false;
    const flush = () => {
      if (flushed) {
        return;
      }
      flushed = true;
      for (const call of this.streams) {
        call.end();
      }
      this.server.tryShutdown(() => this.leave());
      setTimeout(() => this.leave(), FLUSH_MS);
    };
    this.drained = flush;
    if (this.running === 0) {
      flush();
      return;
    }
    setTimeout(() => {
      log('warn', 'calls in flight are cut off', { after: `${DRAIN_MS}ms` });
      flush();
    }, DRAIN_MS);
  }

  leave() {
    if (this.socket) {
      fs.rmSync(this.socket, { force: true });
    }
    process.exit(0);
  }
}

function signalOf(call) {
  const given = new AbortController();
  call.on('cancelled', () => given.abort());
  return given.signal;
}

// withOptions reads the options of a request, which travel as JSON.
function withOptions(req) {
  return { ...req, launchOptions: object('launchOptions', req.launchOptionsJson) };
}

function object(what, bytes) {
  if (!bytes || bytes.length === 0) {
    return {};
  }
  let value;
  try {
    value = JSON.parse(bytes.toString());
  } catch (err) {
    throw new Refusal('invalid', `${what} is not JSON: ${err.message}`);
  }
  if (value === null || typeof value !== 'object' || Array.isArray(value)) {
    throw new Refusal('invalid', `${what} is not a JSON object`);
  }
  return value;
}

function bounded(text) {
  const bytes = Buffer.from(text);
  return bytes.length <= MAX_DETAIL ? text : `${bytes.subarray(0, MAX_DETAIL).toString()} ...`;
}

module.exports = { Refusal, binary, decodeOptions, environ, log, serveConnector, setEnv };
