# planaria-planner: docker build -f deploy/planner.Dockerfile .
FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN python -m venv /opt/planaria \
    && /opt/planaria/bin/pip install --no-cache-dir '.[planner]' -c constraints.txt

FROM python:3.12-slim
COPY --from=build /opt/planaria /opt/planaria
# Compiles the inner loops, so that no start on a machine like this one has to.
RUN /opt/planaria/bin/python -m planaria_planner.warm_up
# One user id for all services: the token's file may be read by its owner alone.
RUN useradd --uid 10001 --create-home planaria \
    && install --directory --owner=planaria --mode=0700 /run/planaria /var/lib/planaria
USER planaria
ENV PATH=/opt/planaria/bin:$PATH PYTHONUNBUFFERED=1
STOPSIGNAL SIGTERM
EXPOSE 50061
ENTRYPOINT ["planaria-planner"]
