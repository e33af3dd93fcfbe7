package live

import (
	"encoding/json"
	"reflect"
	"sync"
	"time"
)

const (
	// sampleEvery is the least time between two samples.
	sampleEvery = time.Second / 2
	// sampleRest is the least time between two samples, in multiples of the first one's duration.
	// Requests of the program wait while the blocks are walked, and this bounds the waits to 1 % of
	// the time.
	sampleRest = 99
)

// sampler samples the cache once for all watchers, and only when a watcher asks.
type sampler struct {
	take func() state

	mu     sync.Mutex // held while a sample is taken
	latest sample
}

// sample is a state and the data of its event.
type sample struct {
	state state
	text  []byte // JSON of state
	// number is that of the state: it rises, from 1, when a sample differs from the previous one.
	number int64
	until  time.Time // when the sample is too old
}

// sample returns the latest sample, or a new one if that is too old or fresh is set.
func (s *sampler) sample(fresh bool) (sample, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	begun := time.Now()
	if !fresh && begun.Before(s.latest.until) {
		return s.latest, nil
	}
	next := sample{state: s.take(), number: s.latest.number}
	before := s.latest.state
	before.Time = next.state.Time
	if next.number == 0 || !reflect.DeepEqual(before, next.state) {
		next.number++
	}
	var err error
	if next.text, err = json.Marshal(next.state); err != nil {
		return sample{}, err
	}
	next.until = begun.Add(max(sampleEvery, sampleRest*time.Since(begun)))
	s.latest = next
	return next, nil
}
