import type { ClusterEvent } from "../services/cluster";
import { clock } from "../services/format";

const SHOWN = 40;

/** The newest events, the newest first. */
export function EventList({ events }: { events: readonly ClusterEvent[] }) {
  const newest = events.slice(-SHOWN).reverse();
  return (
    <>
      <ol className="events" reversed>
        {newest.map((event) => (
          <li key={event.sequence} value={event.sequence}>
            <time dateTime={event.time}>{clock(event.time)}</time> <code>{event.type}</code>{" "}
            {event.message}
          </li>
        ))}
      </ol>
      {events.length > SHOWN && (
        <p className="quiet">
          The newest {SHOWN} of {events.length}; <code>planaria jobs events</code> shows all.
        </p>
      )}
    </>
  );
}
