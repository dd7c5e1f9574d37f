# A node and its mounts. Mounting needs: docker run --device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined
# Multicast discovery needs --network host.
FROM python:3.12-slim

RUN apt-get update \
 && apt-get install -y --no-install-recommends fuse3 \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY hoard_p2p ./hoard_p2p
RUN pip install --no-cache-dir . && rm -rf /src

WORKDIR /
ENV HOARD_DATA_DIR=/var/lib/hoard
VOLUME /var/lib/hoard
# hoard down and docker stop both end the node cleanly; --init (or an init in the image) reaps what mounts leave.
STOPSIGNAL SIGTERM
ENTRYPOINT ["hoard"]
CMD ["up"]
