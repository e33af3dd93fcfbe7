package safetensors

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// openIndex opens the shards that an index lists.
func openIndex(path string, o options) (_ *File, err error) {
	byShard, err := readIndex(path, o)
	if err != nil {
		return nil, err
	}
	f := &File{byName: map[string]int{}}
	var files []*os.File
	f.close = sync.OnceValue(func() error {
		var errs []error
		for _, file := range files {
			errs = append(errs, file.Close())
		}
		return errors.Join(errs...)
	})
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	for _, shard := range slices.Sorted(maps.Keys(byShard)) {
		listed := byShard[shard]
		p, file, err := openPart(filepath.Join(filepath.Dir(path), shard), o)
		if err != nil {
			return nil, fmt.Errorf("shard %q, which has %d of the tensors: %w", shard, len(listed), err)
		}
		files = append(files, file)
		for _, t := range p.header.tensors {
			if listed[t.Name] {
				delete(listed, t.Name)
				f.add(t, p)
			}
		}
		if missing := slices.Sorted(maps.Keys(listed)); len(missing) > 0 {
			return nil, formatError("shard %q lacks %d of the tensors that the index places there, such as %q", shard, len(missing), missing[0])
		}
	}
	return f, nil
}

// readIndex reads an index, and returns the names of the tensors by the names of their shards.
func readIndex(path string, o options) (map[string]map[string]bool, error) {
	file, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if size > o.maxHeader {
		return nil, formatError("the index has %d bytes, more than the limit of %d; see MaxHeader", size, o.maxHeader)
	}
	text, err := io.ReadAll(io.LimitReader(file, size))
	if err != nil {
		return nil, err
	}
	return parseIndex(text)
}

func parseIndex(text []byte) (map[string]map[string]bool, error) {
	var shardOf map[string]string
	d := json.NewDecoder(strings.NewReader(string(text)))
	err := object(d, func(key string) error {
		if key != "weight_map" {
			return d.Decode(new(json.RawMessage))
		}
		if shardOf != nil {
			return formatError("the index has two weight_maps")
		}
		shardOf = map[string]string{}
		return object(d, func(name string) error {
			if _, ok := shardOf[name]; ok {
				return formatError("%q appears twice in the index", name)
			}
			shard, err := word(d, "shard", name)
			shardOf[name] = shard
			return err
		})
	})
	if err != nil {
		if !errors.Is(err, ErrFormat) {
			err = formatError("the index: %v", err)
		}
		return nil, err
	}
	if len(shardOf) == 0 {
		return nil, formatError("the index has no weight_map, or an empty one")
	}
	byShard := map[string]map[string]bool{}
	for name, shard := range shardOf {
		if shard == "." || strings.ContainsAny(shard, `/\`) || !filepath.IsLocal(shard) {
			return nil, formatError("the index places %q in %q: want the name of a file beside the index", name, shard)
		}
		if byShard[shard] == nil {
			byShard[shard] = map[string]bool{}
		}
		byShard[shard][name] = true
	}
	return byShard, nil
}
