# The page behind nginx, which passes /api on to the coordinator: docker build -f deploy/web.Dockerfile .
FROM node:22-slim AS build
WORKDIR /source/web
COPY web/package.json web/package-lock.json ./
RUN npm ci --no-audit --no-fund
COPY web ./
COPY services/coordinator/openapi.json ../services/coordinator/openapi.json
RUN npm run build

FROM nginxinc/nginx-unprivileged:1.28-alpine
COPY --from=build /source/web/dist /usr/share/nginx/html
COPY deploy/web.conf.template /etc/nginx/templates/default.conf.template
EXPOSE 8080
