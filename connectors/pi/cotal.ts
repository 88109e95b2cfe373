// A seat of cotal-host: tools of the mesh, what this program does, and messages that begin a turn. It stands between
// pi and cotal-bridge and is written anew for every launch.
import { execFile, spawn } from "node:child_process";
import { createInterface } from "node:readline";

export default async function (pi: any) {
  const bridge = process.env.COTAL_BRIDGE!;
  const run = (args: string[], done: (err: any, out: string) => void, timeout = 0) =>
    execFile(bridge, args, { timeout, maxBuffer: 32 << 20 }, done);

  // Tools: the bridge is an MCP server on a pipe, one JSON object a line.
  const server = spawn(bridge, ["mcp", "--silence", "0"], { stdio: ["pipe", "pipe", "ignore"] });
  const waiting = new Map<number, { resolve: (r: any) => void; reject: (e: Error) => void }>();
  const end = () => {
    for (const w of waiting.values()) w.reject(new Error("cotal-bridge has ended"));
    waiting.clear();
  };
  let last = 0;
  server.on("error", end).on("exit", end);
  server.stdin.on("error", end);
  createInterface({ input: server.stdout }).on("line", (line) => {
    let m: any;
    try { m = JSON.parse(line); } catch { return; }
    const w = waiting.get(m.id);
    if (!w || !("result" in m || "error" in m)) return;
    waiting.delete(m.id);
    if (m.error) w.reject(new Error(m.error.message));
    else w.resolve(m.result);
  });
  const send = (m: object) => server.stdin.write(JSON.stringify({ jsonrpc: "2.0", ...m }) + "\n");
  const call = (method: string, params: object) =>
    new Promise<any>((resolve, reject) => {
      waiting.set(++last, { resolve, reject });
      send({ id: last, method, params });
    });
  await call("initialize", { protocolVersion: "2025-06-18", capabilities: {}, clientInfo: { name: "pi", version: "1" } });
  send({ method: "notifications/initialized" });
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

  // State: one after the other, as it happened.
  let told = Promise.resolve();
  const tell = (ctx: any, status: string, more: object = {}) => {
    const event = { status, session: ctx.sessionManager.getSessionId(), model: ctx.model && `${ctx.model.provider}/${ctx.model.id}`, ...more };
    told = told.then(() => new Promise((done) => run(["hook", "status", JSON.stringify(event)], () => done(), 3000)));
  };
  pi.on("agent_start", (_: any, ctx: any) => tell(ctx, "working"));
  pi.on("tool_call", (e: any, ctx: any) => tell(ctx, "working", { activity: e.toolName }));
  pi.on("tool_result", (_: any, ctx: any) => tell(ctx, "working"));
  pi.on("agent_end", (e: any, ctx: any) => {
    const end = e.messages?.at(-1);
    tell(ctx, "idle", end?.stopReason === "error" ? { condition: "failed", source: "pi", message: end.errorMessage } : {});
  });

  // Messages to an idle agent begin a turn.
  let closed = false;
  let wait: any;
  const next = () => {
    wait = run(["next", "--wait", "1m"], (err, out) => {
      if (closed) return;
      if (!err && out.trim()) pi.sendUserMessage(JSON.parse(out).text, { deliverAs: "followUp" });
      setTimeout(next, err ? 1000 : 0).unref();
    });
  };
  pi.on("session_start", (_: any, ctx: any) => {
    tell(ctx, "idle");
    if (!wait) next();
  });
  pi.on("session_shutdown", (e: any) => {
    if (e.reason && e.reason !== "quit") return; // another session begins in the same process
    closed = true;
    wait?.kill();
    server.stdin.end();
  });
}
