/** What tests of components share: the providers of the app, and samples of what the coordinator sends. */
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { render } from "@testing-library/react";
import type { ReactNode } from "react";
import { PollingProvider } from "./hooks/polling";
import type { Node } from "./services/cluster";
import type { Job, StepMetrics } from "./services/jobs";

export function renderInApp(ui: ReactNode) {
  const queries = new QueryClient({
    defaultOptions: { queries: { retry: false, networkMode: "always" } },
  });
  return render(
    <QueryClientProvider client={queries}>
      <PollingProvider>{ui}</PollingProvider>
    </QueryClientProvider>,
  );
}

export function aNode(id: string, changes: Partial<Node> = {}): Node {
  return {
    id,
    state: "READY",
    address: "127.0.0.1",
    num_accelerators: 1,
    accelerator_kind: "cpu",
    version: "0.1.0",
    agent_pid: 100,
    accelerator_memory_bytes: 2 ** 30,
    labels: {},
    engines: [],
    heartbeat_time: "2026-01-01T00:00:00Z",
    join_time: "2026-01-01T00:00:00Z",
    silent_since_time: null,
    ...changes,
  };
}

export function aJob(changes: Partial<Job> = {}): Job {
  return {
    id: "job-1",
    name: "small",
    state: "RUNNING",
    step: 3,
    steps: 10,
    loss: 2.5,
    evaluation_loss: null,
    evaluation_step: null,
    generation: 2,
    tokens_per_second: 100,
    goodput: 0.9,
    final_digest: "",
    error: null,
    create_time: "2026-01-01T00:00:00Z",
    start_time: "2026-01-01T00:00:01Z",
    end_time: null,
    spec: {},
    fault_tolerance: 1,
    time_seconds: {},
    waiting_reason: "",
    num_skipped_steps: 0,
    conditions: [],
    ...changes,
  };
}

export function aStep(step: number, changes: Partial<StepMetrics> = {}): StepMetrics {
  return {
    step,
    loss: 5 - step / 100,
    gradient_norm: 1,
    learning_rate: 3e-4,
    num_tokens: 4096,
    step_seconds: 0.4,
    tokens_per_second: 10_240,
    model_flops_utilization: 0.3,
    evaluation_loss: null,
    skipped_layer: null,
    generation: 1,
    commit_time: "2026-01-01T00:00:00Z",
    ...changes,
  };
}
