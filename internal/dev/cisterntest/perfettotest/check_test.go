package perfettotest

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCheck: a valid file has no faults, and each fault is found.
func TestCheck(t *testing.T) {
	const names = `{"ph":"M","pid":1,"tid":0,"ts":0,"name":"process_name","args":{"name":"p"}},
		{"ph":"M","pid":1,"tid":2,"ts":0,"name":"thread_name","args":{"name":"l"}}`
	const lane = `"pid":1,"tid":2`
	const spans = `{"ph":"X",` + lane + `,"ts":1,"dur":5,"name":"a"},{"ph":"X",` + lane + `,"ts":1.5,"dur":2,"name":"b"}`
	for _, c := range []struct{ events, want string }{
		{events: spans},
		{events: spans + `,{"ph":"X",` + lane + `,"ts":6,"dur":2,"name":"after"}`},
		{events: spans + `,{"ph":"X",` + lane + `,"ts":5.999,"dur":2,"name":"c"}`, want: "c sticks out of a"},
		{events: spans + `,{"ph":"s","id":1,` + lane + `,"ts":1.2,"name":"n"},{"ph":"f","bp":"e","id":1,` + lane + `,"ts":1.5,"name":"n"}`},
		{events: spans + `,{"ph":"s","id":1,` + lane + `,"ts":1.2,"name":"n"}`, want: "has 1 ends"},
		{events: spans + `,{"ph":"f","bp":"e","id":1,` + lane + `,"ts":1.2,"name":"n"}`, want: "other ends before"},
		{events: spans + `,{"ph":"s","id":1,` + lane + `,"ts":1.2,"name":"n"},{"ph":"f","id":1,` + lane + `,"ts":1.5,"name":"n"}`, want: "next slice"},
		{events: spans + `,{"ph":"s","id":1,` + lane + `,"ts":1.2,"name":"n"},{"ph":"f","bp":"e","id":1,` + lane + `,"ts":1,"name":"n"}`, want: "it began at 1.200"},
		{events: spans + `,{"ph":"s","id":1,` + lane + `,"ts":1.2,"name":"n"},{"ph":"f","bp":"e","id":1,` + lane + `,"ts":6,"name":"n"}`, want: "in no slice"},
		{events: `{"ph":"X",` + lane + `,"ts":1,"name":"a"}`, want: "dur is <nil>"},
		{events: `{"ph":"X",` + lane + `,"ts":1,"dur":-1,"name":"a"}`, want: "dur is -1"},
		{events: `{"ph":"X",` + lane + `,"ts":-1,"dur":1,"name":"a"}`, want: "ts is -1"},
		{events: `{"ph":"X",` + lane + `,"ts":"1","dur":1,"name":"a"}`, want: "not a number"},
		{events: `{"ph":"X",` + lane + `,"ts":1,"dur":1}`, want: "no name"},
		{events: `{"ph":"X","pid":1,"tid":3,"ts":1,"dur":1,"name":"a"}`, want: "has no name"},
		{events: `{"ph":"Y",` + lane + `,"ts":1,"name":"a"}`, want: "ph is Y"},
		{events: `{"ph":"C",` + lane + `,"ts":1,"name":"a","args":{"v":1}}`},
		{events: `{"ph":"C",` + lane + `,"ts":1,"name":"a","args":{"v":"1"}}`, want: "not a number"},
		{events: `{"ph":"C",` + lane + `,"ts":1,"name":"a"}`, want: "no values"},
		{events: `{"ph":"i",` + lane + `,"ts":1,"name":"a"}`, want: "scope"},
		{events: `{"ph":"i","s":"g",` + lane + `,"ts":1,"name":"a"}`},
		{events: `{"ph":"B",` + lane + `,"ts":1,"name":"a"},{"ph":"E",` + lane + `,"ts":1}`},
		{events: `{"ph":"B",` + lane + `,"ts":1,"name":"a"}`, want: "have no E"},
		{events: `{"ph":"E",` + lane + `,"ts":1,"name":"a"}`, want: "there is no B"},
		{events: `{"ph":"M",` + lane + `,"ts":0,"name":"thread_name","args":{"name":"l"}}`, want: "two names"},
		{events: `{"ph":"M","pid":2,"tid":0,"ts":0,"name":"process_name","args":{}}`, want: "the name is empty"},
		{events: `7`, want: "cannot unmarshal"},
	} {
		err := errors.Join(Check([]byte("[" + names + "," + c.events + "]"))...)
		if c.want == "" {
			require.NoError(t, err, c.events)
		} else {
			require.ErrorContains(t, err, c.want, c.events)
		}
	}
}
