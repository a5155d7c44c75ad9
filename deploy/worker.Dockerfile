# planaria-worker: docker build -f deploy/worker.Dockerfile .
# For CUDA: --build-arg TORCH_BUILD="" takes the build on PyPI, several gigabytes.
FROM python:3.12-slim AS build
ARG TORCH_BUILD=+cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /source
COPY . .
# torch first: without a build named, the dependency would bring CUDA.
RUN python -m venv /opt/planaria \
    && version=$(sed -n 's/^torch==//p' constraints.txt) \
    && /opt/planaria/bin/pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" \
        "torch==$version$TORCH_BUILD" -c constraints.txt \
    && /opt/planaria/bin/pip install --no-cache-dir '.[worker]' -c constraints.txt

FROM python:3.12-slim
COPY --from=build /opt/planaria /opt/planaria
# One user id for all services: the token's file may be read by its owner alone.
RUN useradd --uid 10001 --create-home planaria \
    && install --directory --owner=planaria --mode=0700 /run/planaria /var/lib/planaria
USER planaria
ENV PATH=/opt/planaria/bin:$PATH PYTHONUNBUFFERED=1
STOPSIGNAL SIGTERM
ENTRYPOINT ["planaria-worker"]
