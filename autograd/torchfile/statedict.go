package torchfile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nlpodyssey/gopickle/types"
)

// size returns the number of a dict's entries, or 0 for other values.
func size(v any) int {
	switch d := v.(type) {
	case *types.Dict:
		return len(*d)
	case *types.OrderedDict:
		return d.Len()
	}
	return 0
}

// pairs returns the entries of a dict.
func pairs(v any) (all []types.DictEntry) {
	switch d := v.(type) {
	case *types.Dict:
		return *d
	case *types.OrderedDict:
		for e := d.List.Front(); e != nil; e = e.Next() {
			entry := e.Value.(*types.OrderedDictEntry)
			all = append(all, types.DictEntry{Key: entry.Key, Value: entry.Value})
		}
	}
	return all
}

// maxNested limits the depth at which a state dict is found.
const maxNested = 4

// stateDict finds the tensors of a file's value, and returns their names in order.
func stateDict(value any) (names []string, views map[string]*view, err error) {
	at := value
	for range maxNested {
		views = map[string]*view{}
		var keys []string
		nested := map[string]any{}
		for _, e := range pairs(at) {
			key, ok := e.Key.(string)
			if !ok {
				continue
			}
			keys = append(keys, key)
			if v, ok := e.Value.(*view); ok {
				if views[key] == nil {
					names = append(names, key)
				}
				views[key] = v
			} else if size(e.Value) > 0 {
				nested[key] = e.Value
			}
		}
		switch {
		case len(names) > 0:
			return names, views, nil
		case nested["state_dict"] != nil:
			at = nested["state_dict"]
		case nested["model"] != nil:
			at = nested["model"]
		default:
			slices.Sort(keys)
			return nil, nil, formatError("it has no tensors: its keys are %s; want a state dict, or one under state_dict or model", clip(fmt.Sprintf("%q", strings.Join(keys, ", "))))
		}
	}
	return nil, nil, formatError("its state dict is nested more than %d times", maxNested)
}
