import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { useState } from "react";
import { PollingControls } from "./components/polling-controls";
import { PollingProvider } from "./hooks/polling";
import { type Route, useRoute } from "./hooks/use-route";
import { JobRoute } from "./routes/job";
import { Overview } from "./routes/overview";

// The next poll is the retry. "always": the coordinator may be on loopback while the machine is offline.
const newQueryClient = () =>
  new QueryClient({ defaultOptions: { queries: { retry: false, networkMode: "always" } } });

export function App() {
  const [queries] = useState(newQueryClient);
  return (
    <QueryClientProvider client={queries}>
      <PollingProvider>
        <a className="skip" href="#main" onClick={skipToMain}>
          Skip to the content
        </a>
        <header className="page-header">
          <a className="brand" href="#/">
            Planaria
          </a>
          <PollingControls />
        </header>
        <main id="main" tabIndex={-1}>
          <Content route={useRoute()} />
        </main>
      </PollingProvider>
    </QueryClientProvider>
  );
}

/** Moves the focus without touching the `#` part, which holds the route. */
function skipToMain(event: React.MouseEvent) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function Content({ route }: { route: Route }) {
  switch (route.name) {
    case "overview":
      return <Overview />;
    case "job":
      return <JobRoute key={route.jobId} jobId={route.jobId} />;
    case "unknown":
      return (
        <p>
          There is no such page: <a href="#/">back to the cluster</a>
        </p>
      );
  }
}
