/** The loss of each committed step; a mark where a new generation took over. */
import type { StepMetrics } from "../services/jobs";
import { thin, ticks } from "./chart-scale";

const WIDTH = 720;
const HEIGHT = 240;
const MARGIN = { left: 48, right: 12, top: 22, bottom: 34 };
const BUCKETS = 400;

interface Scale {
  x: (step: number) => number;
  y: (loss: number) => number;
  xTicks: number[];
  yTicks: number[];
}

function scaleFor(metrics: readonly StepMetrics[]): Scale {
  const steps = metrics.map((m) => m.step);
  const losses = metrics.map((m) => m.loss);
  const [left, right] = [steps[0] ?? 0, Math.max((steps[0] ?? 0) + 1, steps.at(-1) ?? 1)];
  const low = losses.reduce((a, b) => Math.min(a, b), Infinity);
  const high = Math.max(
    losses.reduce((a, b) => Math.max(a, b), -Infinity),
    low + 1e-6,
  );
  const innerWidth = WIDTH - MARGIN.left - MARGIN.right;
  const innerHeight = HEIGHT - MARGIN.top - MARGIN.bottom;
  return {
    x: (step) => MARGIN.left + ((step - left) / (right - left)) * innerWidth,
    y: (loss) => MARGIN.top + ((high - loss) / (high - low)) * innerHeight,
    xTicks: ticks(left, right, 8),
    yTicks: ticks(low, high, 5),
  };
}

export function LossChart({ metrics }: { metrics: readonly StepMetrics[] }) {
  const finite = metrics.filter((m) => Number.isFinite(m.loss));
  const [first, last] = [finite[0], finite.at(-1)];
  if (first === undefined || last === undefined) return null;
  const scale = scaleFor(finite);
  const points = thin(
    finite.map((m) => ({ x: m.step, y: m.loss })),
    BUCKETS,
  ).map(({ x, y }) => `${scale.x(x).toFixed(1)},${scale.y(y).toFixed(1)}`);
  const changes = finite.filter((m, i) => i > 0 && m.generation !== finite[i - 1]?.generation);
  const label =
    `Loss from ${first.loss.toFixed(4)} at step ${first.step} to ${last.loss.toFixed(4)} ` +
    `at step ${last.step}; ${changes.length} ${changes.length === 1 ? "change" : "changes"} of plan`;
  return (
    <svg role="img" aria-label={label} className="chart" viewBox={`0 0 ${WIDTH} ${HEIGHT}`}>
      <Axes scale={scale} />
      {changes.map((m) => (
        <GenerationMark key={m.step} x={scale.x(m.step)} generation={m.generation} />
      ))}
      <polyline className="curve" points={points.join(" ")} />
    </svg>
  );
}

function Axes({ scale }: { scale: Scale }) {
  const bottom = HEIGHT - MARGIN.bottom;
  return (
    <g className="axes">
      {scale.yTicks.map((loss) => (
        <g key={loss}>
          <line x1={MARGIN.left} x2={WIDTH - MARGIN.right} y1={scale.y(loss)} y2={scale.y(loss)} />
          <text x={MARGIN.left - 6} y={scale.y(loss) + 4} textAnchor="end">
            {Number(loss.toPrecision(4))}
          </text>
        </g>
      ))}
      {scale.xTicks.map((step) => (
        <text key={step} x={scale.x(step)} y={bottom + 16} textAnchor="middle">
          {step}
        </text>
      ))}
      <text x={WIDTH - MARGIN.right} y={HEIGHT - 4} textAnchor="end">
        step
      </text>
      <text x={4} y={12}>
        loss
      </text>
    </g>
  );
}

function GenerationMark({ x, generation }: { x: number; generation: number }) {
  return (
    <g className="generation">
      <line x1={x} x2={x} y1={MARGIN.top} y2={HEIGHT - MARGIN.bottom} />
      <text x={x} y={MARGIN.top - 6} textAnchor="middle">
        g{generation}
      </text>
    </g>
  );
}
