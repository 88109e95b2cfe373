// Loads the extension as pi would and prints what happened, one fact a line; the test judges.
import { existsSync, readFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";

const place = process.env.PLACE;
const tools = {};
const on = {};
const { createJiti } = await import(process.argv[2]);
const load = await createJiti(import.meta.url, { moduleCache: false, fsCache: false }).import(process.argv[3], { default: true });
await load({ registerTool: (t) => (tools[t.name] = t), on: (name, f) => (on[name] = f), sendUserMessage() {} });
const ctx = { sessionManager: { getSessionFile: () => undefined, getSessionId: () => "s" } };
const call = () => tools.cotal_dm.execute("1", {}).then((r) => "answered " + r.content[0].text, (e) => "refused");
const told = () => (existsSync(place + "/told") ? readFileSync(place + "/told", "utf8").trim().split("\n") : []);
const until = async (what) => { while (!what()) await pause(20); };

on.agent_start({}, ctx);
await until(() => told().length === 2);
console.log("first:", await call());
process.kill(Number(readFileSync(place + "/pid", "utf8")), "SIGKILL");
await call(); // on its way when the bridge ended: its pipe is closed,
await call(); // its end is known,
await call(); // and it is away; after a second there is another
console.log("away: returned");
await until(() => told().length === 3); // the state is being told anew
on.agent_end({ messages: [] }, ctx);
await until(() => told().length === 6);
console.log("again:", await call());
console.log("told:", told().map((l) => l.replace(/^begin .*"status":"(\w+)".*/, "$1")).join(" "));
await on.session_shutdown({ reason: "new" });
process.exit(0);
