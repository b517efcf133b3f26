# A worker: one model replica, with torch and UCX.
#   docker build -f docker/worker.Dockerfile -t headrace-worker .
#   docker build -f docker/worker.Dockerfile --build-arg ACCELERATOR=cuda -t headrace-worker:cuda .
# BASE: any Debian with Python 3.11 or later. ACCELERATOR: cpu or cuda. torch's build for CUDA 13 brings CUDA along, the
# host only its driver; UCX's bindings have to be of the same CUDA.
# TORCH_CPU_INDEX_URL: where the CPU build of torch is; empty: wherever pip looks.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates g++ python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/headrace
WORKDIR /src
COPY pyproject.toml docker/requirements.py ./
ARG ACCELERATOR=cpu
ARG TORCH_CPU_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN python3 requirements.py worker > requirements.txt \
 && grep '^torch' requirements.txt > torch.txt \
 && case "${ACCELERATOR}" in \
      cpu) index="${TORCH_CPU_INDEX_URL}" ;; \
      cuda) index="" ;; \
      *) echo "ACCELERATOR is cpu or cuda, not ${ACCELERATOR}." >&2; exit 1 ;; \
    esac \
 && /opt/headrace/bin/pip install ${index:+--index-url "${index}"} --requirement torch.txt
RUN /opt/headrace/bin/pip install --requirement requirements.txt
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
EXPOSE 9100
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 CMD ["headrace", "health", "127.0.0.1:9100"]
ENTRYPOINT ["headrace"]
CMD ["worker"]
