package surface

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/stretchr/testify/assert"
)

// Format prints every receiver with the verbs of package fmt, while change is called in another goroutine. What has a
// method String is short, and nothing shows locks or the memory that it points to, except the types in raw, which is by
// name, with the reason.
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
