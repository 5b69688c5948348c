package common

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Settings are the -set options: "NAME=VALUE", a field of one of the library's values, and a Go expression.
type Settings []string

func (s *Settings) String() string { return strings.Join(*s, " ") }

// Set takes one more option.
func (s *Settings) Set(option string) error {
	*s = append(*s, option)
	return nil
}

// Apply sets each field that an option names: "transport.MetadataTTL" is that field of the value called "transport".
func (s Settings) Apply(values map[string]any) error {
	for _, option := range s {
		name, expression, _ := strings.Cut(option, "=")
		path := strings.Split(name, ".")
		value, known := values[path[0]]
		if !known {
			return fmt.Errorf("%s: there is no such value", option)
		}
		field := reflect.ValueOf(value).Elem()
		for _, each := range path[1:] {
			if field = field.FieldByName(each); !field.IsValid() {
				return fmt.Errorf("%s: there is no field %s", option, each)
			}
		}
		if err := assign(field, expression); err != nil {
			return fmt.Errorf("%s: %w", option, err)
		}
	}
	return nil
}

var units = map[string]time.Duration{"time.Millisecond": time.Millisecond, "time.Second": time.Second}

func assign(field reflect.Value, expression string) error {
	if field.Kind() == reflect.Bool {
		value, err := strconv.ParseBool(expression)
		field.SetBool(value)
		return err
	}
	count, unit, timed := strings.Cut(expression, "*")
	number, err := strconv.ParseInt(count, 10, 64)
	if err != nil {
		return err
	}
	if timed {
		length, known := units[unit]
		if !known {
			return fmt.Errorf("there is no unit %s", unit)
		}
		number *= int64(length)
	}
	field.SetInt(number)
	return nil
}
