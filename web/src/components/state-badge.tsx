/** A state as sign and word; the colour only repeats what they say. */
import type { Node } from "../services/cluster";
import type { Job } from "../services/jobs";

type Tone = "good" | "busy" | "bad" | "still";
export type State = Job["state"] | Node["state"];

const LOOK: Record<State, readonly [sign: string, tone: Tone]> = {
  PENDING: ["○", "still"],
  STARTING: ["◔", "busy"],
  RUNNING: ["▶", "good"],
  RECOVERING: ["↻", "busy"],
  WAITING: ["…", "busy"],
  PAUSED: ["‖", "still"],
  SUCCEEDED: ["✓", "good"],
  FAILED: ["✕", "bad"],
  CANCELLED: ["⊘", "still"],
  READY: ["●", "good"],
  CORDONED: ["◐", "still"],
  DRAINING: ["◑", "busy"],
  DRAINED: ["○", "still"],
  LOST: ["✕", "bad"],
};

export function StateBadge({ state }: { state: State }) {
  const [sign, tone] = LOOK[state];
  return (
    <span className={`badge ${tone}`}>
      <span aria-hidden="true">{sign} </span>
      {state.toLowerCase()}
    </span>
  );
}
