package race_test

import (
	"errors"
	"testing"

	"github.com/cistern-ml/cistern/internal/race"
)

func TestQuietly(t *testing.T) {
	want := errors.New("an error")
	for _, err := range []error{nil, want} {
		n := 0
		got, gotErr := race.Quietly(func() (int, error) { n++; return 7, err })
		if got != 7 || gotErr != err {
			t.Errorf("got %d, %v; want 7, %v", got, gotErr, err)
		}
		if err != nil && n != 1 { // without an error there is no edge, so n must not be read
			t.Errorf("called %d times", n)
		}
	}
}
