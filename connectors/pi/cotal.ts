// A seat of cotal-host: tools of the mesh, what this program does, and messages that begin a turn. It stands between
// pi and cotal-bridge and is written anew for every launch.
import { execFile, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { createInterface } from "node:readline";

export default async function (pi: any) {
  const bridge = process.env.COTAL_BRIDGE!;
  const run = (args: string[], input: string, timeout: number, done: (err: any, out: string) => void) => {
    const child = execFile(bridge, args, { timeout, maxBuffer: 32 << 20 }, done);
    child.stdin?.on("error", () => {}).end(input);
    return child;
  };
  let closed = false;

  // Tools: the bridge is an MCP server on a pipe, one JSON object a line. One that is killed is started again.
  let server: any;
  let exited: Promise<void>;
  const waiting = new Map<number, { resolve: (r: any) => void; reject: (e: Error) => void }>();
  const end = () => {
    for (const w of waiting.values()) w.reject(new Error("cotal-bridge has ended"));
    waiting.clear();
  };
  let last = 0;
  const heard = (line: string) => {
    let m: any;
    try { m = JSON.parse(line); } catch { return; }
    const w = waiting.get(m.id);
    if (!w || !("result" in m || "error" in m)) return;
    waiting.delete(m.id);
    if (m.error) w.reject(new Error(m.error.message));
    else w.resolve(m.result);
  };
  // To one that has ended a write fails without an event: only what is called back knows.
  const send = (m: any) => server.stdin.write(JSON.stringify({ jsonrpc: "2.0", ...m }) + "\n", (e: any) => {
    if (!e) return;
    waiting.get(m.id)?.reject(new Error("cotal-bridge is away; try again"));
    waiting.delete(m.id);
  });
  const call = (method: string, params: object) =>
    new Promise<any>((resolve, reject) => {
      waiting.set(++last, { resolve, reject });
      send({ id: last, method, params });
    });
  let latest = ""; // event that was told last
  let told = Promise.resolve();
  const hook = (name: string, text: () => string) => {
    told = told.then(() => new Promise((done) => run(["hook", name], text(), 3000, () => done())));
  };
  let began = 0;
  let pause = 500;
  const later = () => {
    if (closed) return;
    pause = Date.now() - began > 60_000 ? 1000 : Math.min(2 * pause, 30_000); // one that ends at once waits longer each time
    setTimeout(again, pause).unref();
  };
  const start = async () => {
    began = Date.now();
    server = spawn(bridge, ["mcp", "--silence", "0"], { stdio: ["pipe", "pipe", "ignore"] });
    server.stdin.on("error", end);
    createInterface({ input: server.stdout }).on("line", heard);
    exited = new Promise<void>((done) => server.on("error", () => done()).on("exit", () => done()));
    exited.then(end);
    await call("initialize", { protocolVersion: "2025-06-18", capabilities: {}, clientInfo: { name: "pi", version: "1" } });
    send({ method: "notifications/initialized" });
    exited.then(later);
  };
  const again = () => {
    if (closed) return;
    start().then(() => latest && hook("status", () => latest), later);
  };
  await start();
  for (const tool of (await call("tools/list", {})).tools) {
    pi.registerTool({
      name: tool.name, label: tool.name, description: tool.description, parameters: tool.inputSchema,
      async execute(_id: string, params: object) {
        const result = await call("tools/call", { name: tool.name, arguments: params });
        const text = result.content.map((c: any) => c.text ?? "").join("\n");
        if (result.isError) throw new Error(text);
        return { content: [{ type: "text", text }], details: {} };
      },
    });
  }

  // State: one after the other, as it happened, and on standard input: every user of the machine can read arguments.
  const tell = (ctx: any, status: string, more: object = {}, name = "status") => {
    if (closed) return;
    const event = { status, session: session(ctx), model: ctx.model && `${ctx.model.provider}/${ctx.model.id}`, ...more };
    const text = (latest = JSON.stringify(event));
    hook(name, () => text);
  };
  // One in which nothing was said has no file: nobody could go on with it.
  const session = (ctx: any) => (existsSync(ctx.sessionManager.getSessionFile() ?? "") ? ctx.sessionManager.getSessionId() : undefined);
  pi.on("agent_start", (_: any, ctx: any) => tell(ctx, "working"));
  pi.on("tool_call", (e: any, ctx: any) => tell(ctx, "working", { activity: e.toolName }));
  pi.on("tool_result", (_: any, ctx: any) => tell(ctx, "working"));
  pi.on("agent_end", (e: any, ctx: any) => {
    const end = e.messages?.at(-1);
    tell(ctx, "idle", end?.stopReason === "error" ? { condition: "failed", source: "pi", message: end.errorMessage } : {});
  });

  // Messages to an idle agent begin a turn. What next has printed counts as read: it is kept until the program has it,
  // by the extension that follows this one in the same process if need be.
  const taken: string[] = ((globalThis as any)[Symbol.for("cotal.taken")] ??= []);
  const deliver = () => {
    try {
      for (; taken.length; taken.shift()) pi.sendUserMessage(taken[0], { deliverAs: "followUp" });
      return true;
    } catch { return false; }
  };
  let wait: any;
  let waited = Promise.resolve();
  const next = () => {
    if (closed) return;
    if (!deliver()) return void setTimeout(next, 1000).unref();
    waited = new Promise((done) => {
      wait = run(["next", "--wait", "1m"], "", 0, (err, out) => {
        if (out.trim() && (!err || closed)) try { taken.push(JSON.parse(out).text); } catch { /* it was ended while it printed */ }
        if (!closed) setTimeout(next, err ? 1000 : 0).unref();
        done();
      });
    });
  };
  pi.on("session_start", (_: any, ctx: any) => {
    tell(ctx, "idle", { source: "startup" }, session(ctx) ? "status" : "session-start");
    if (!wait) next();
  });
  pi.on("session_shutdown", async (e: any) => {
    closed = true;
    wait?.kill();
    if (!e.reason || e.reason === "quit") return void server.stdin.end();
    // /new, /resume, /fork and /reload load this file anew in the same process: one seat must not have two bridges.
    const late = new Promise((done) => setTimeout(done, 5000).unref());
    await Promise.race([late, Promise.all([told, waited])]);
    server.stdin.end();
    await Promise.race([late, exited]);
    server.kill("SIGKILL");
  });
}
