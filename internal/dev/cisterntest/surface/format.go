package surface

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/stretchr/testify/assert"
)

// Format prints every receiver with the verbs of package fmt, while another goroutine calls change.
// The text of a type with a String method must be short, and no text may show locks or pointed-to
// memory, except for the types in raw, which has the reasons by name.
func (s *Surface) Format(raw map[string]string, change func()) {
	var done atomic.Bool
	var changer sync.WaitGroup
	if change != nil {
		changer.Go(func() {
			for !done.Load() {
				change()
			}
		})
	}
	for _, name := range slices.Sorted(maps.Keys(s.Receivers)) {
		v := s.Receivers[name]()
		for _, verb := range []string{"%v", "%+v", "%s", "%v", "%v"} {
			if raw[name] != "" {
				continue
			}
			text := fmt.Sprintf(verb, v)
			assert.NotRegexp(s.T, `sema:|0xc|PANIC=|noCopy`, text, "%s of %s", verb, name)
			if _, ok := v.(fmt.Stringer); ok {
				assert.NotEmpty(s.T, text, name)
				assert.Less(s.T, len(text), 200, "%s of %s", verb, name)
			}
		}
	}
	for name := range raw {
		assert.NotNil(s.T, s.Receivers[name], name)
	}
	done.Store(true)
	changer.Wait()
}
