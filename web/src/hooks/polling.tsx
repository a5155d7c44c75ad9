/** How often every view asks the coordinator: one setting for the whole page, kept across visits. */
import { createContext, type ReactNode, useContext, useMemo, useState } from "react";

export const INTERVALS_SECONDS = [1, 2, 5, 15] as const;
const DEFAULT_SECONDS = 2;
const KEY = "planaria-polling-seconds";

export interface Polling {
  seconds: number;
  paused: boolean;
  setSeconds: (seconds: number) => void;
  setPaused: (paused: boolean) => void;
}

const PollingContext = createContext<Polling | null>(null);

function remembered(): number {
  const seconds = Number(window.localStorage.getItem(KEY));
  return INTERVALS_SECONDS.find((allowed) => allowed === seconds) ?? DEFAULT_SECONDS;
}

export function PollingProvider({ children }: { children: ReactNode }) {
  const [seconds, setSeconds] = useState(remembered);
  const [paused, setPaused] = useState(false);
  const polling = useMemo<Polling>(
    () => ({
      seconds,
      paused,
      setPaused,
      setSeconds: (chosen) => {
        window.localStorage.setItem(KEY, String(chosen));
        setSeconds(chosen);
      },
    }),
    [seconds, paused],
  );
  return <PollingContext value={polling}>{children}</PollingContext>;
}

export function usePolling(): Polling {
  const polling = useContext(PollingContext);
  if (polling === null) throw new Error("usePolling needs a PollingProvider around it");
  return polling;
}
