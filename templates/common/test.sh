#!/bin/sh
# Builds the handler and calls it with recorded answers: no network, no database. Exits 1 when an answer is not as it should be.
set -eu
cd "$(dirname "$0")"
program=${PIECEWORK:-piecework}
handler=plugins/@NAME@.wasm
wrong=0

./build.sh

# call WHAT ARGUMENTS...: one call; its answer, one line of JSON, is in $answer.
call() {
    what=$1
    shift
    # A failure of the handler is an answer, too: exit code 1.
    answer=$("$program" invoke "$handler" --json "$@") || [ $? = 1 ]
}

# has TEXT...: each must be in the answer, spaces left out.
has() {
    for text; do
        case $(echo "$answer" | tr -d ' \n') in
        *"$text"*) ;;
        *)
            echo "test: $what: no $text in: $answer" >&2
            wrong=1
            ;;
        esac
    done
}

call "a page that is there" --http replay:tests/page.json --payload '{"url":"https://example.com/","times":2}'
has '"outcome":"done"' '"bytes":13' '"status":200' '"left":1' '"checkpoints":{"seen":{' '"job_type":"@NAME@"' '"times":1' \
    '"delay":60'

call "a page that is not there" --http replay:tests/page.json --payload '{"url":"https://example.com/missing"}'
has '"outcome":"guest_discard"' 404

call "a server in trouble" --http replay:tests/page.json --payload '{"url":"https://example.com/trouble"}'
has '"outcome":"guest_retry"' '"disposition":"retry-after30"'

call "no answer" --http replay:tests/page.json --payload '{"url":"https://example.com/slow"}'
has '"outcome":"guest_retry"' '"disposition":"retry"'

call "the attempt after one that had saved" --attempt 2 --http deny --checkpoint 'seen={"status":200,"bytes":7}' \
    --payload '{"url":"https://example.com/"}'
has '"outcome":"done"' '"bytes":7' '"left":0' '"checkpoints":{}' '"follow_ups":[]'

call "a payload without its member" --payload '{"ulr":"https://example.com/"}'
has '"outcome":"guest_discard"' url

[ "$wrong" = 0 ] && echo "test: ok"
exit "$wrong"
