# The control processes: gateway, router, frontend (both in one), placement. No torch, no UCX.
#   docker build -f docker/control.Dockerfile -t headrace-control .
# BASE: any Debian with Python 3.11 or later. EXTRAS: extras of pyproject.toml, e.g. "ray" for placement on Ray.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/headrace
WORKDIR /src
COPY pyproject.toml docker/requirements.py ./
ARG EXTRAS=""
RUN python3 requirements.py ${EXTRAS} > requirements.txt \
 && /opt/headrace/bin/pip install --requirement requirements.txt
COPY setup.py README.md LICENSE ./
COPY services services
COPY kernels kernels
RUN /opt/headrace/bin/pip install --no-deps .

FROM ${BASE}
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates python3 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --create-home headrace \
 && install --directory --owner=headrace --group=headrace /var/cache/headrace
COPY --from=build /opt/headrace /opt/headrace
ENV PATH=/opt/headrace/bin:$PATH PYTHONUNBUFFERED=1 HOME=/home/headrace
USER 10001:10001
WORKDIR /home/headrace
EXPOSE 8000 9000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["headrace", "health", "http://127.0.0.1:8000"]
ENTRYPOINT ["headrace"]
CMD ["frontend"]
