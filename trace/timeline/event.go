package timeline

import (
	"encoding/json"
	"strconv"
	"time"
)

// event is one object of the file.
type event struct {
	// phase is X: a span; C: a counter; i: a moment; s and f: the ends of an arrow; M: a name.
	phase string
	at    lane
	name  string
	kind  string // cat; "": none
	from  time.Duration
	dur   time.Duration // of a span
	args  []arg
	id    int64 // of an arrow's two ends
}

// lane is the position of an event in a viewer.
type lane struct{ process, thread int }

// arg is a text or a number.
type arg struct {
	key, text string
	number    int64
	isNumber  bool
}

func text(key, v string) arg { return arg{key: key, text: v} }

func number(key string, v int64) arg { return arg{key: key, number: v, isNumber: true} }

// append appends the event in JSON. The times come last, because they differ from event to event:
// the rest is then in one piece and compresses better.
func (e event) append(b []byte) []byte {
	b = append(b, `{"ph":"`...)
	b = append(b, e.phase...)
	b = append(b, `","pid":`...)
	b = strconv.AppendInt(b, int64(e.at.process), 10)
	b = append(b, `,"tid":`...)
	b = strconv.AppendInt(b, int64(e.at.thread), 10)
	b = append(b, `,"name":`...)
	b = appendText(b, e.name)
	if e.kind != "" {
		b = append(b, `,"cat":`...)
		b = appendText(b, e.kind)
	}
	switch e.phase {
	case "i":
		b = append(b, `,"s":"g"`...)
	case "s":
		b = strconv.AppendInt(append(b, `,"id":`...), e.id, 10)
	case "f":
		b = strconv.AppendInt(append(b, `,"bp":"e","id":`...), e.id, 10)
	}
	if len(e.args) > 0 {
		b = append(b, `,"args":{`...)
		for i, a := range e.args {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendText(b, a.key), ':')
			if a.isNumber {
				b = strconv.AppendInt(b, a.number, 10)
			} else {
				b = appendText(b, a.text)
			}
		}
		b = append(b, '}')
	}
	if e.phase == "X" {
		b = append(b, `,"dur":`...)
		b = appendMicros(b, e.dur)
	}
	b = append(b, `,"ts":`...)
	b = appendMicros(b, e.from)
	return append(b, '}')
}

// appendMicros appends microseconds, the format's unit, to the nanosecond.
func appendMicros(b []byte, d time.Duration) []byte {
	b = strconv.AppendInt(b, int64(d/time.Microsecond), 10)
	if ns := int64(d % time.Microsecond); ns > 0 {
		b = append(b, '.', byte('0'+ns/100), byte('0'+ns/10%10), byte('0'+ns%10))
	}
	return b
}

// appendText appends a text in quotes. Nearly all are plain names.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, err := json.Marshal(s)
			if err != nil { // impossible for a string
				quoted = []byte(`""`)
			}
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// span is an activity with a duration.
type span struct {
	name, kind string
	from, to   time.Duration
	args       []arg
}

func (s span) event(at lane) event {
	return event{phase: "X", at: at, name: s.name, kind: s.kind, from: s.from, dur: max(0, s.to-s.from), args: s.args}
}
