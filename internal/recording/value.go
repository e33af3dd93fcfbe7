package recording

import (
	"fmt"
	"math/big"

	"github.com/nlpodyssey/gopickle/types"
)

// Access to the values of a pickle, with checks. what names a value in errors.

func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "None"
	case *types.Dict:
		return "a dict"
	case *types.List:
		return "a list"
	case *types.Tuple:
		return "a tuple"
	case string:
		return "a string"
	case int, *big.Int:
		return "an integer"
	case float64:
		return "a float"
	case bool:
		return "a bool"
	}
	return fmt.Sprintf("a %T", v)
}

func dictOf(v any, what string) (*types.Dict, error) {
	d, ok := v.(*types.Dict)
	if !ok {
		return nil, fmt.Errorf("%s is %s; want a dict", what, kindOf(v))
	}
	return d, nil
}

// field returns a dict's value for a key. ok is false if there is none.
func field(d *types.Dict, key string) (v any, ok bool) {
	for i := len(*d) - 1; i >= 0; i-- {
		if k, isText := (*d)[i].Key.(string); isText && k == key {
			return (*d)[i].Value, true
		}
	}
	return nil, false
}

// listField returns a dict's list, which is empty if missing.
func listField(d *types.Dict, key, what string) (types.List, error) {
	v, ok := field(d, key)
	if !ok {
		return nil, nil
	}
	l, ok := v.(*types.List)
	if !ok {
		return nil, fmt.Errorf("%s is %s; want a list", what, kindOf(v))
	}
	return *l, nil
}

func textField(d *types.Dict, key, what string) (string, error) {
	v, _ := field(d, key)
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("%s: %s is %s; want a string", what, key, kindOf(v))
	}
	return s, nil
}

func intField(d *types.Dict, key, what string) (int64, error) {
	v, _ := field(d, key)
	switch n := v.(type) {
	case int:
		return int64(n), nil
	case *big.Int:
		if n.IsInt64() {
			return n.Int64(), nil
		}
	}
	return 0, fmt.Errorf("%s: %s is %s; want an integer of at most 64 bits", what, key, kindOf(v))
}

// uintField returns an address or a handle. It converts a negative number by two's complement.
func uintField(d *types.Dict, key, what string) (uint64, error) {
	v, _ := field(d, key)
	return uintOf(v, what+": "+key)
}

func uintOf(v any, what string) (uint64, error) {
	switch n := v.(type) {
	case int:
		return uint64(n), nil
	case *big.Int:
		if n.IsUint64() {
			return n.Uint64(), nil
		}
		if n.IsInt64() {
			return uint64(n.Int64()), nil
		}
	}
	return 0, fmt.Errorf("%s is %s; want an integer of at most 64 bits", what, kindOf(v))
}
