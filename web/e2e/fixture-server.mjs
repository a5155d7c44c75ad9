/**
 * A coordinator's read side with fixed answers, and the built page: what the flow runs against when
 * there is no cluster, and how to look at the page alone: `node e2e/fixture-server.mjs [PORT]`.
 */
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const DIST = fileURLToPath(new URL("../dist", import.meta.url));
const TYPES = {
  ".html": "text/html",
  ".js": "text/javascript",
  ".css": "text/css",
  ".svg": "image/svg+xml",
};
const START_MS = Date.now() - 90_000;
const at = (seconds) => new Date(START_MS + seconds * 1000).toISOString();

const node = (n, state) => ({
  id: `node-${n}`,
  state,
  address: "127.0.0.1",
  num_accelerators: 1,
  accelerator_kind: "cpu",
  version: "0.1.0",
  agent_pid: 4000 + n,
  engines:
    state === "LOST"
      ? []
      : [
          {
            id: `job-1/node-${n}/0/1`,
            job_id: "job-1",
            accelerator: 0,
            pid: 5000 + n,
            state: "TRAINING",
          },
        ],
  heartbeat_time: state === "LOST" ? at(31) : new Date().toISOString(),
  join_time: at(0),
  silent_since_time: null,
});

const job = (id, changes) => ({
  id,
  name: "shakespeare-small",
  state: "RUNNING",
  step: 120,
  steps: 200,
  loss: 2.4181,
  evaluation_loss: 2.5312,
  evaluation_step: 100,
  generation: 2,
  tokens_per_second: 10_240,
  goodput: 0.943,
  final_digest: "",
  error: null,
  create_time: at(0),
  start_time: at(6),
  end_time: null,
  spec: {},
  fault_tolerance: 1,
  time_seconds: { productive: 79.2, starting: 6, quiesce: 0.1, rebuild: 0.4, redone: 0.9 },
  waiting_reason: "",
  conditions: [],
  ...changes,
});

const JOBS = [
  job("job-1"),
  job("job-0", {
    name: "too-large",
    state: "FAILED",
    step: 0,
    loss: null,
    evaluation_loss: null,
    evaluation_step: null,
    tokens_per_second: 0,
    goodput: null,
    error: { reason: "MODEL_DOES_NOT_FIT", message: "layer 3 needs 9 GB and a node has 8 GB" },
    time_seconds: {},
  }),
];

const stage = (firstLayer, numLayers, nodeIndex, n) => ({
  first_layer: firstLayer,
  num_layers: numLayers,
  node_index: nodeIndex,
  node_id: `node-${n}`,
  accelerators: [0],
});

const PLAN = {
  generation: 2,
  reason: "node-3 was lost: its pipeline borrows node-5",
  plan: {
    pipelines: [
      {
        stages: [stage(0, 5, 0, 1), stage(5, 5, 1, 2)],
        microbatches: [0, 1, 2, 3, 4, 5, 6, 7],
        iteration_seconds: 0.41,
      },
      {
        stages: [stage(0, 4, 0, 4), stage(4, 6, 1, 5)],
        microbatches: [8, 9, 10, 11, 12, 13, 14, 15],
        iteration_seconds: 0.43,
      },
    ],
    idle_node_ids: [],
    iteration_seconds: 0.43,
    fault_tolerance: 1,
  },
};

const METRICS = Array.from({ length: 120 }, (_, step) => ({
  step,
  loss: 2.3 + 3.2 * Math.exp(-step / 30) + 0.05 * Math.sin(step * 1.7),
  gradient_norm: 1,
  learning_rate: 3e-4,
  num_tokens: 4096,
  step_seconds: 0.4,
  tokens_per_second: 10_240,
  model_flops_utilization: 0.3,
  evaluation_loss: step % 20 ? null : 2.4 + 3.2 * Math.exp(-step / 30),
  generation: step < 60 ? 1 : 2,
  commit_time: at(6 + step * 0.6),
}));

const RECOVERIES = [
  {
    id: 1,
    cause: "node_lost",
    nodes_lost: ["node-3"],
    nodes_joined: [],
    generation: 2,
    redone_microbatches: 4,
    copied_bytes: 12_582_912,
    phases: [
      { name: "detect", start_time: at(31), duration_seconds: 0.056 },
      { name: "quiesce", start_time: at(31.1), duration_seconds: 0.031 },
      { name: "copy", start_time: at(31.2), duration_seconds: 0.21 },
    ],
    detect_seconds: 0.056,
    fence_seconds: 0.087,
    resume_seconds: 0.42,
    regrow_seconds: 0.5,
    idle_seconds: 0,
    lost_seconds: null,
    lost_accelerator_seconds: { idle: 0.5, redone: 1.1 },
    start_time: at(31),
    end_time: at(31.5),
    pipeline_sizes_before: [2, 3],
    pipeline_sizes_after: [2, 2],
    reason: "node-3 was lost",
  },
];

const event = (sequence, seconds, type, message) => ({
  sequence,
  time: at(seconds),
  type,
  job_id: "job-1",
  node_id: "",
  generation: sequence < 4 ? 1 : 2,
  message,
  details: {},
});

const EVENTS = [
  event(1, 0, "job_created", "job-1 was submitted"),
  event(2, 6, "job_running", "job-1 trains on 5 nodes as pipelines of 2 and 3 nodes"),
  event(3, 31, "node_lost", "node-3 was lost: its process ended"),
  event(4, 31.5, "recovery_finished", "job-1 trains on in generation 2"),
];

const list = (name, items) => ({ [name]: items, next_page_token: "" });

function answer(path) {
  const [, id, part] = /^\/api\/v1\/jobs\/([^/]+)(?:\/(\w+))?$/.exec(path) ?? [];
  if (path === "/api/v1/jobs") return list("jobs", JOBS);
  if (path === "/api/v1/nodes")
    return list(
      "nodes",
      [1, 2, 3, 4, 5].map((n) => node(n, n === 3 ? "LOST" : "READY")),
    );
  if (path === "/api/v1/events") return list("events", EVENTS);
  const found = JOBS.find((candidate) => candidate.id === id);
  if (found === undefined) return undefined;
  const isRunning = found.id === "job-1";
  return {
    undefined: found,
    plan: isRunning ? PLAN : { plan: null, generation: 0, reason: "" },
    metrics: list("metrics", isRunning ? METRICS : []),
    recoveries: list("recoveries", isRunning ? RECOVERIES : []),
    events: list("events", isRunning ? EVENTS : []),
  }[String(part)];
}

async function respond(request, response) {
  const { pathname } = new URL(request.url, "http://localhost");
  if (pathname.startsWith("/api/")) {
    const body = answer(pathname);
    const problem = { title: "Not found", detail: "there is no such job", reason: "JOB_NOT_FOUND" };
    response.writeHead(body ? 200 : 404, { "Content-Type": "application/json" });
    response.end(JSON.stringify(body ?? problem));
    return;
  }
  const file = normalize(pathname === "/" ? "/index.html" : pathname);
  try {
    const content = await readFile(join(DIST, file));
    response.writeHead(200, { "Content-Type": TYPES[extname(file)] ?? "text/plain" });
    response.end(content);
  } catch {
    response.writeHead(404).end("not found");
  }
}

/** Starts the server on loopback; port 0 takes a free one. */
export function startFixtureServer(port = 0) {
  return new Promise((resolve) => {
    const server = createServer((request, response) => void respond(request, response));
    server.listen(port, "127.0.0.1", () => resolve(server));
  });
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  const server = await startFixtureServer(Number(process.argv[2] ?? 8090));
  console.log(`http://127.0.0.1:${server.address().port}/`);
}
