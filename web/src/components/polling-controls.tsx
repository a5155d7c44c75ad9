import { useId } from "react";
import { INTERVALS_SECONDS, usePolling } from "../hooks/polling";

export function PollingControls() {
  const { seconds, paused, setSeconds, setPaused } = usePolling();
  const field = useId();
  return (
    <div className="polling">
      <label htmlFor={field}>Refresh every</label>
      <select
        id={field}
        value={seconds}
        onChange={(event) => {
          setSeconds(Number(event.target.value));
        }}
      >
        {INTERVALS_SECONDS.map((choice) => (
          <option key={choice} value={choice}>
            {choice} s
          </option>
        ))}
      </select>
      <button
        type="button"
        aria-pressed={paused}
        onClick={() => {
          setPaused(!paused);
        }}
      >
        {paused ? "Resume" : "Pause"}
      </button>
    </div>
  );
}
