#!/bin/sh
# A worker that is no Python program: says that it runs, and ends when `finish` appears.
printf '{"ev":"boot","pid":%d,"generation":%d,"rank":%d,"world":%d,"node":"%s","restarts":%d}\n' $$ "$ELASTIC_HEALTH_GENERATION" "$RANK" \
    "$WORLD_SIZE" "$ELASTIC_HEALTH_NODE" "$TORCHELASTIC_RESTART_COUNT" >> "$RUN_DIR/events.jsonl"
while [ ! -e "$RUN_DIR/finish" ]; do sleep 0.1; done
