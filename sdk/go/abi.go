package piecework

import "unsafe"

// The border: the canonical ABI by hand, so that no module from outside is needed. Addresses are 32 bits.
//
// While the host asks for room, this component may call nobody; Go's runtime looks at the clock then. hold tells the adapter of
// `piecework componentize` to answer by itself: before each call whose answer needs room, and until run is called. Goroutines that
// are still at work then may be run, and must not call the host: wait for them before you do.
//
// What the host is given must not lie on a stack, which may move while the host asks for room: it is kept in `given` until the
// host has returned. What the host writes is kept in `room` until Go's own pointers hold it.

var (
	given []any
	room  [][]uint64
	// Where the host writes its answers.
	answer [8]uint32
)

func at(address uint32) unsafe.Pointer   { return unsafe.Pointer(uintptr(address)) }
func address(of unsafe.Pointer) uint32   { return uint32(uintptr(of)) }
func text(start, length uint32) string   { return string(unsafe.Slice((*byte)(at(start)), length)) }
func word(address uint32) uint32         { return *(*uint32)(at(address)) }
func first(word uint32) byte             { return byte(word) }

//go:wasmimport wasi_snapshot_preview1 piecework_hold
func hold(on uint32)

func init() { hold(1) }

// The last thing before a call whose answer needs room.
func answers() uint32 {
	hold(1)
	return address(unsafe.Pointer(&answer))
}

func done() {
	hold(0)
	clear(given)
	given = given[:0]
	clear(room)
	room = room[:0]
}

func give(s string) (uint32, uint32) {
	if s == "" {
		return 4, 0
	}
	given = append(given, s)
	return address(unsafe.Pointer(unsafe.StringData(s))), uint32(len(s))
}

//go:wasmexport cabi_realloc
func cabiRealloc(old, oldSize, align, size uint32) uint32 {
	if size == 0 {
		return align
	}
	words := make([]uint64, (size+7)/8)
	start := unsafe.Pointer(unsafe.SliceData(words))
	if old != 0 {
		copy(unsafe.Slice((*byte)(start), size), unsafe.Slice((*byte)(at(old)), oldSize))
	}
	room = append(room, words)
	return address(start)
}

//go:wasmimport piecework:handler/jobs@0.1.0 enqueue
func hostEnqueue(job, answer uint32)

//go:wasmimport piecework:handler/jobs@0.1.0 progress
func hostProgress(percent, start, length uint32)

//go:wasmimport piecework:handler/jobs@0.1.0 cancelled
func hostCancelled() uint32

//go:wasmimport piecework:handler/checkpoint@0.1.0 load
func hostLoad(start, length, answer uint32)

//go:wasmimport piecework:handler/checkpoint@0.1.0 save
func hostSave(start, length, json, jsonLength, answer uint32)

//go:wasmimport piecework:handler/log@0.1.0 log
func hostLog(level, start, length uint32)

//go:wasmimport wasi:config/store@0.2.0-rc.1 get
func hostGet(start, length, answer uint32)

//go:wasmimport piecework:handler/http@0.1.0 send
func hostSend(method, methodLength, url, urlLength, headers, headerCount, hasBody, body, bodyLength, hasTimeout, timeout, answer uint32)

// Progress tells people how far the attempt is.
func Progress(percent uint8, message string) {
	defer done()
	start, length := give(message)
	hostProgress(uint32(percent), start, length)
}

// Cancelled says whether the host wants this attempt to end soon: the job was cancelled, or the host stops.
func Cancelled() bool { return hostCancelled() != 0 }

func log(level uint32, message string) {
	defer done()
	start, length := give(message)
	hostLog(level, start, length)
}

// Config is a setting of [plugins.NAME.config] in runner.toml.
func Config(name string) (string, bool) {
	defer done()
	start, length := give(name)
	hostGet(start, length, answers())
	if first(answer[0]) != 0 || first(answer[1]) == 0 {
		return "", false
	}
	return text(answer[2], answer[3]), true
}

func load(name string) (string, bool) {
	defer done()
	start, length := give(name)
	hostLoad(start, length, answers())
	if first(answer[0]) == 0 {
		return "", false
	}
	return text(answer[1], answer[2]), true
}

// The reason why it was refused.
func reason() string {
	if first(answer[0]) == 0 {
		return ""
	}
	return text(answer[1], answer[2])
}

func save(name, json string) string {
	defer done()
	start, length := give(name)
	from, size := give(json)
	hostSave(start, length, from, size, answers())
	return reason()
}

func enqueue(job FollowUp, payload string) string {
	defer done()
	// The record new-job, by words.
	record := new([23]uint32)
	given = append(given, record)
	option := func(at int, value string) {
		if value != "" {
			record[at] = 1
			record[at+1], record[at+2] = give(value)
		}
	}
	number := func(at int, value *uint32) {
		if value != nil {
			record[at], record[at+1] = 1, *value
		}
	}
	record[0], record[1] = give(job.JobType)
	record[2], record[3] = give(payload)
	number(4, job.Delay)
	option(6, job.DueAt)
	if job.Priority != nil {
		record[9] = 1 | uint32(*job.Priority)<<8
	}
	number(10, job.MaxAttempts)
	option(12, job.UniqueKey)
	number(15, job.UniqueFor)
	option(17, job.OrderingKey)
	option(20, job.GroupKey)
	hostEnqueue(address(unsafe.Pointer(record)), answers())
	return reason()
}

var kinds = [...]string{"denied", "timeout", "dns", "connect", "tls", "protocol", "too-large", "limit", "cancelled"}

// Send makes one call. A status that says that something went wrong is no error.
func Send(request Request) (*Response, error) {
	defer done()
	if request.Method == "" {
		request.Method = "GET"
	}
	headers := make([]uint32, 0, 4*len(request.Headers)+1)
	for _, header := range request.Headers {
		name, nameLength := give(header.Name)
		value, valueLength := give(header.Value)
		headers = append(headers, name, nameLength, value, valueLength)
	}
	headers = append(headers, 0)
	given = append(given, headers)
	var hasBody, body, bodyLength, hasTimeout uint32
	if request.Body != nil {
		hasBody = 1
		body, bodyLength = give(string(request.Body))
	}
	if request.Timeout != 0 {
		hasTimeout = 1
	}
	method, methodLength := give(request.Method)
	url, urlLength := give(request.URL)
	hostSend(method, methodLength, url, urlLength, address(unsafe.Pointer(unsafe.SliceData(headers))),
		uint32(len(request.Headers)), hasBody, body, bodyLength, hasTimeout, request.Timeout, answers())
	if first(answer[0]) != 0 {
		return nil, &HTTPError{kinds[first(answer[1])], text(answer[2], answer[3])}
	}
	response := &Response{Status: uint16(answer[1])}
	for number := uint32(0); number < answer[3]; number++ {
		entry := answer[2] + 16*number
		response.Headers = append(response.Headers,
			Header{text(word(entry), word(entry+4)), text(word(entry+8), word(entry+12))})
	}
	response.Body = []byte(text(answer[4], answer[5]))
	return response, nil
}

// What run returns, by words, and its text.
var (
	returned     [5]uint32
	returnedText string
)

//go:wasmexport run
func run(record uint32) uint32 {
	field := func(at uint32) string { return text(word(record+at), word(record+at+4)) }
	option := func(at uint32) *string {
		if first(word(record+at)) == 0 {
			return nil
		}
		return Some(field(at + 4))
	}
	job := Job{
		ID: field(0), JobType: field(8), Payload: field(16),
		Attempt: word(record + 24), MaxAttempts: word(record + 28),
		IdempotencyKey: field(32), OrderingKey: option(40), GroupKey: option(52),
		EnqueuedAt: field(64), DueAt: field(72), Parent: option(80),
	}
	done()
	result, failure := call(job)
	given = given[:0]
	if failure == nil {
		returnedText = result
		returned[1] = 1
		returned[2], returned[3] = give(returnedText)
	} else {
		returnedText = failure.Message
		returned[0] = 1
		returned[1], returned[2] = give(returnedText)
		returned[3], returned[4] = failure.disposition, failure.seconds
	}
	return address(unsafe.Pointer(&returned))
}
