/** The loss of steps and of evaluations; a mark where a new generation took over. */
import type { StepMetrics } from "../services/jobs";
import { type Point, thin, ticks } from "./chart-scale";

const WIDTH = 720;
const HEIGHT = 240;
const MARGIN = { left: 48, right: 12, top: 22, bottom: 34 };
const BUCKETS = 400;
const LABEL_WIDTH = 20;

interface Scale {
  x: (step: number) => number;
  y: (loss: number) => number;
  xTicks: number[];
  yTicks: number[];
}

function pointsOf(
  metrics: readonly StepMetrics[],
  value: (step: StepMetrics) => number | null,
): Point[] {
  return metrics.flatMap((m) => {
    const y = value(m);
    return y !== null && Number.isFinite(y) ? [{ x: m.step, y }] : [];
  });
}

function scaleFor(points: readonly Point[]): Scale {
  const steps = points.map(({ x }) => x);
  const losses = points.map(({ y }) => y);
  const left = steps.reduce((a, b) => Math.min(a, b), Infinity);
  const right = steps.reduce((a, b) => Math.max(a, b), left + 1);
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
  const trained = pointsOf(metrics, (m) => m.loss);
  const evaluated = pointsOf(metrics, (m) => m.evaluation_loss);
  const [first, last] = [trained[0], trained.at(-1)];
  if (first === undefined || last === undefined) return null;
  const scale = scaleFor([...trained, ...evaluated]);
  const changes = metrics.filter((m, i) => i > 0 && m.generation !== metrics[i - 1]?.generation);
  const newest = evaluated.at(-1);
  const label =
    `Loss from ${first.y.toFixed(4)} at step ${first.x} to ${last.y.toFixed(4)} ` +
    `at step ${last.x}; ${changes.length} ${changes.length === 1 ? "change" : "changes"} of plan` +
    (newest ? `; evaluation ${newest.y.toFixed(4)} after ${newest.x} steps` : "");
  return (
    <svg role="img" aria-label={label} className="chart" viewBox={`0 0 ${WIDTH} ${HEIGHT}`}>
      <Axes scale={scale} />
      {changes.map((m, i) => (
        <GenerationMark
          key={m.step}
          x={scale.x(m.step)}
          room={scale.x(changes[i + 1]?.step ?? Infinity) - scale.x(m.step)}
          generation={m.generation}
        />
      ))}
      <Curve scale={scale} points={thin(trained, BUCKETS)} />
      {newest && (
        <>
          <Curve scale={scale} points={thin(evaluated, BUCKETS)} kind="evaluation" />
          <text className="evaluation" x={4} y={HEIGHT - 4}>
            - - evaluation
          </text>
        </>
      )}
    </svg>
  );
}

function Curve({
  scale,
  points,
  kind = "",
}: {
  scale: Scale;
  points: readonly Point[];
  kind?: string;
}) {
  const drawn = points.map(({ x, y }) => `${scale.x(x).toFixed(1)},${scale.y(y).toFixed(1)}`);
  return <polyline className={`curve ${kind}`.trim()} points={drawn.join(" ")} />;
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

/** Where two are close together, the later one has its name. */
function GenerationMark({ x, room, generation }: { x: number; room: number; generation: number }) {
  return (
    <g className="generation">
      <line x1={x} x2={x} y1={MARGIN.top} y2={HEIGHT - MARGIN.bottom} />
      {room >= LABEL_WIDTH && (
        <text x={x} y={MARGIN.top - 6} textAnchor="middle">
          g{generation}
        </text>
      )}
    </g>
  );
}
