package replay

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// ParseOptions is [memcache.ParseConfig] with exact:True as the default, except for options that
// Exact does not allow.
func ParseOptions(options string) (memcache.Config, error) {
	if c, err := memcache.ParseConfig(options); err != nil || c.ReuseAcrossStreams != memcache.ReuseNever {
		return c, err
	}
	return memcache.ParseConfig("exact:True," + options)
}

// OptionsFor parses options that are compared with a recording. For a recording of memcache's own,
// exact defaults to the recorded value. label is the option string with that default.
func OptionsFor(p *recording.Program, options string) (config memcache.Config, label string, err error) {
	if !p.Own {
		config, err = ParseOptions(options)
		return config, options, err
	}
	own, err := memcache.ParseConfig(p.Conf)
	if err != nil {
		return config, options, fmt.Errorf("%s: the recorded options: %w", p.Name, err)
	}
	for i, exact := range []bool{own.Exact, !own.Exact} {
		said := "exact:False"
		if exact {
			said = "exact:True"
		}
		c, err := memcache.ParseConfig(said + "," + options)
		switch {
		case err != nil && i > 0: // the options exclude this value of exact
		case err != nil:
			return c, options, err
		case i == 0:
			config, label = c, strings.TrimSuffix(said+","+options, ",")
		case c.Exact == config.Exact:
			label = options // the options set exact themselves
		}
	}
	return config, label, nil
}

// RecordedOptions returns [Config] and OptionsFor's label of the recorded options.
func RecordedOptions(p *recording.Program) (config memcache.Config, label string, err error) {
	conf := p.Conf
	if !p.Own {
		conf, _ = knownOptions(conf)
	}
	if _, label, err = OptionsFor(p, conf); err == nil {
		config, err = Config(p)
	}
	return config, label, err
}

// Config returns the recorded options. Options that memcache does not know are ignored. A recording
// of memcache's own has its memory limit in p.Limit, because the program may have changed it, and
// none in the configuration.
func Config(p *recording.Program) (memcache.Config, error) {
	parse := ParseOptions
	conf := p.Conf
	if p.Own {
		// the recording has the value of exact
		parse = memcache.ParseConfig
	} else {
		conf, _ = knownOptions(conf)
	}
	config, err := parse(conf)
	if err != nil {
		return config, fmt.Errorf("%s: the recorded options: %w", p.Name, err)
	}
	if p.Own {
		config.PerProcessMemoryFraction, config.MemoryLimit = 0, 0
		config.MaxCachedBytes = 0 // the recording contains the resulting trims
	}
	if s := p.Settings; s != nil {
		config.MaxSplitSizeMB = max(s.MaxSplitSize, 0) >> 20
		config.GarbageCollectionThreshold = s.GarbageCollectionThreshold
		config.ExpandableSegments = s.ExpandableSegments
		for i, n := range s.RoundupPower2Divisions {
			config.RoundupPower2Divisions[i] = int(n)
		}
	}
	return config, nil
}

// option matches one option, key:value, whose value may be a list.
var option = regexp.MustCompile(`[^,:]+:(\[[^\]]*\]|[^,]*)`)

// knownOptions splits an option string into the options that memcache knows and the others.
func knownOptions(conf string) (known string, unknown []string) {
	if _, err := ParseOptions(conf); err == nil {
		return conf, nil
	}
	var list []string
	for _, o := range option.FindAllString(conf, -1) {
		if _, err := memcache.ParseConfig(o); err == nil {
			list = append(list, o)
		} else {
			unknown = append(unknown, o)
		}
	}
	return strings.Join(list, ","), unknown
}

// optionNotes lists the recorded options that are ignored.
func optionNotes(p *recording.Program) (notes []string) {
	if p.Own {
		return nil
	}
	_, unknown := knownOptions(p.Conf)
	for _, o := range unknown {
		notes = append(notes, fmt.Sprintf("the recorded option %s is unknown and ignored", o))
	}
	return notes
}
