package recording

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/nlpodyssey/gopickle/pickle"
)

// readPickle reads what torch.cuda.memory._dump_snapshot wrote.
func readPickle(in *bufio.Reader, limits Limits) ([]*Recording, error) {
	data, err := io.ReadAll(in)
	if err != nil {
		return nil, err
	}
	if err := scan(data, limits); err != nil {
		return nil, err
	}
	value, err := unpickle(data)
	if err != nil {
		return nil, err
	}
	return newSnapshot(value, limits)
}

// unpickle decodes what scan has accepted. The decoder panics on some pickles that put values in the wrong place.
func unpickle(data []byte) (value any, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the pickle is corrupt: %v", r)
		}
	}()
	u := pickle.NewUnpickler(bytes.NewReader(data))
	refuse := errors.New("the pickle names a class")
	u.FindClass = func(string, string) (any, error) { return nil, refuse }
	u.PersistentLoad = func(any) (any, error) { return nil, refuse }
	value, err = u.Load()
	if err != nil {
		err = fmt.Errorf("the pickle is corrupt: %w", err)
	}
	return value, err
}
