import java.io.IOException;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.cep.CEP;
import org.apache.flink.cep.PatternSelectFunction;
import org.apache.flink.cep.nfa.aftermatch.AfterMatchSkipStrategy;
import org.apache.flink.cep.pattern.Pattern;
import org.apache.flink.cep.pattern.conditions.IterativeCondition;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.RestOptions;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;

/**
 * Runs patterns through the real Flink: reads cases (JSON lines), writes the matches of each (JSON lines).
 *
 * <p>A job costs about a second however small it is, so many cases share one: each has its own source and its own
 * operator in it. A case marked "alone" is expected to fail and gets a job of its own. Events are
 * [sn, ts in milliseconds, key, letters, v].
 */
public final class FlinkOracle {
    private static final int CASES_PER_JOB = 40;
    private static final TypeInformation<Row> EVENT =
            Types.ROW_NAMED(
                    new String[] {"sn", "ts", "key", "letters", "v"},
                    Types.LONG, Types.INSTANT, Types.STRING, Types.STRING, Types.DOUBLE);
    /** The jobs run inside this JVM, so their results can simply be left here. */
    private static final Map<String, ConcurrentLinkedQueue<String>> FOUND = new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        ObjectMapper json = new ObjectMapper();
        List<JsonNode> shared = new ArrayList<>();
        List<List<JsonNode>> jobs = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(args[0]), StandardCharsets.UTF_8)) {
            JsonNode node = json.readTree(line);
            if (node.path("alone").asBoolean()) {
                jobs.add(List.of(node));
            } else {
                shared.add(node);
            }
        }
        for (int from = 0; from < shared.size(); from += CASES_PER_JOB) {
            jobs.add(shared.subList(from, Math.min(shared.size(), from + CASES_PER_JOB)));
        }
        try (PrintWriter out = new PrintWriter(args[1], StandardCharsets.UTF_8)) {
            for (List<JsonNode> job : jobs) {
                run(job, out);
            }
        }
    }

    private static void run(List<JsonNode> cases, PrintWriter out) throws IOException {
        StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(1, settings());
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        Map<String, String> errors = new TreeMap<>();
        for (JsonNode node : cases) {
            String id = node.get("id").asText();
            FOUND.put(id, new ConcurrentLinkedQueue<>());
            try {
                DataStream<String> matches =
                        node.has("sql") ? matchRecognize(env, tables, id, node) : cep(env, node);
                matches.map(new Leave(id)).returns(Types.STRING).sinkTo(new DiscardingSink<>());
            } catch (Exception refused) {
                errors.put(id, deepest(refused));
            }
        }
        if (errors.size() < cases.size()) {
            try {
                env.execute("oracle");
            } catch (Exception failed) {
                for (JsonNode node : cases) {
                    errors.putIfAbsent(node.get("id").asText(), deepest(failed));
                }
            }
        }
        ObjectMapper json = new ObjectMapper();
        for (JsonNode node : cases) {
            String id = node.get("id").asText();
            Map<String, Object> line = new TreeMap<>();
            line.put("id", id);
            line.put("matches", new ArrayList<>(FOUND.get(id)));
            if (errors.containsKey(id)) {
                line.put("error", errors.get(id));
            }
            out.println(json.writeValueAsString(line));
        }
        out.flush();
    }

    private static Configuration settings() {
        Configuration settings = new Configuration();
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "disable");
        settings.set(TaskManagerOptions.NETWORK_MEMORY_MIN, MemorySize.ofMebiBytes(256));
        settings.set(TaskManagerOptions.NETWORK_MEMORY_MAX, MemorySize.ofMebiBytes(256));
        settings.set(RestOptions.BIND_ADDRESS, "127.0.0.1");
        settings.set(RestOptions.BIND_PORT, "0");
        return settings;
    }

    private static String deepest(Throwable failure) {
        Throwable cause = failure;
        while (cause.getCause() != null) {
            cause = cause.getCause();
        }
        return cause.getClass().getSimpleName() + ": " + cause.getMessage();
    }

    private static DataStream<Row> source(StreamExecutionEnvironment env, JsonNode node) {
        List<Row> rows = new ArrayList<>();
        for (JsonNode event : node.get("stream")) {
            rows.add(
                    Row.of(
                            event.get(0).asLong(),
                            Instant.ofEpochMilli(event.get(1).asLong()),
                            event.get(2).asText(),
                            event.get(3).asText(),
                            event.get(4).isNull() ? null : event.get(4).asDouble()));
        }
        return env.fromData(EVENT, rows.toArray(new Row[0]))
                .assignTimestampsAndWatermarks(
                        WatermarkStrategy.<Row>forMonotonousTimestamps()
                                .withTimestampAssigner((row, before) -> ((Instant) row.getField(1)).toEpochMilli()));
    }

    // SQL

    /** The query's first column is the key, then one column per symbol with its sequence numbers, comma-separated. */
    private static DataStream<String> matchRecognize(
            StreamExecutionEnvironment env, StreamTableEnvironment tables, String id, JsonNode node) {
        String view = "t_" + id.replace('-', '_');
        Schema schema =
                Schema.newBuilder()
                        .column("sn", DataTypes.BIGINT())
                        .column("ts", DataTypes.TIMESTAMP_LTZ(3))
                        .column("key", DataTypes.STRING())
                        .column("letters", DataTypes.STRING())
                        .column("v", DataTypes.DOUBLE())
                        .watermark("ts", "SOURCE_WATERMARK()")
                        .build();
        tables.createTemporaryView(view, source(env, node), schema);
        List<String> symbols = new ArrayList<>();
        node.get("symbols").forEach(symbol -> symbols.add(symbol.asText()));
        return tables.toDataStream(tables.sqlQuery(node.get("sql").asText().replace("$input", view)))
                .map(new Bound(symbols))
                .returns(Types.STRING);
    }

    private static final class Bound implements MapFunction<Row, String> {
        private final List<String> symbols;

        Bound(List<String> symbols) {
            this.symbols = new ArrayList<>(symbols);
        }

        @Override
        public String map(Row row) {
            List<String> bound = new ArrayList<>();
            for (int i = 0; i < symbols.size(); i++) {
                Object sns = row.getField(i + 1);
                if (sns != null) {
                    for (String sn : sns.toString().split(",")) {
                        bound.add(symbols.get(i) + ":" + sn);
                    }
                }
            }
            return String.join(" ", bound);
        }
    }

    private static final class Leave implements MapFunction<String, String> {
        private final String id;

        Leave(String id) {
            this.id = id;
        }

        @Override
        public String map(String match) {
            FOUND.get(id).add(match);
            return match;
        }
    }

    // CEP

    private static DataStream<String> cep(StreamExecutionEnvironment env, JsonNode node) {
        DataStream<Row> keyed = source(env, node).keyBy((KeySelector<Row, String>) row -> (String) row.getField(2));
        Pattern<Row, ?> pattern = pattern(node.get("steps"), skip(node.get("skip")));
        if (node.path("within").asLong() > 0) {
            pattern = pattern.within(Duration.ofMillis(node.get("within").asLong()));
        }
        return CEP.pattern(keyed, pattern).select(new Names(), Types.STRING);
    }

    private static final class Names implements PatternSelectFunction<Row, String> {
        @Override
        public String select(Map<String, List<Row>> match) {
            List<String> bound = new ArrayList<>();
            match.forEach((name, rows) -> rows.forEach(row -> bound.add(name + ":" + row.getField(0))));
            return String.join(" ", bound);
        }
    }

    private static AfterMatchSkipStrategy skip(JsonNode node) {
        switch (node.get(0).asText()) {
            case "none":
                return AfterMatchSkipStrategy.noSkip();
            case "to next row":
                return AfterMatchSkipStrategy.skipToNext();
            case "past last row":
                return AfterMatchSkipStrategy.skipPastLastEvent();
            case "to first":
                return AfterMatchSkipStrategy.skipToFirst(node.get(1).asText());
            case "to last":
                return AfterMatchSkipStrategy.skipToLast(node.get(1).asText());
            default:
                throw new IllegalArgumentException(node.toString());
        }
    }

    private static Pattern<Row, ?> pattern(JsonNode steps, AfterMatchSkipStrategy skip) {
        Pattern<Row, ?> pattern = null;
        for (JsonNode step : steps) {
            pattern = quantified(step, step.has("group") ? group(pattern, step, skip) : single(pattern, step, skip));
        }
        return pattern;
    }

    @SuppressWarnings("unchecked")
    private static Pattern<Row, ?> single(Pattern<Row, ?> before, JsonNode step, AfterMatchSkipStrategy skip) {
        String name = step.get("name").asText();
        Pattern<Row, Row> added;
        if (before == null) {
            added = Pattern.begin(name, skip);
        } else {
            added = (Pattern<Row, Row>) connected(before, name, step.get("how").asText());
        }
        return added.where(new Condition(step.get("condition").toString(), name));
    }

    private static Pattern<Row, ?> connected(Pattern<Row, ?> before, String name, String how) {
        switch (how) {
            case "next":
                return before.next(name);
            case "followedBy":
                return before.followedBy(name);
            case "followedByAny":
                return before.followedByAny(name);
            case "notNext":
                return before.notNext(name);
            case "notFollowedBy":
                return before.notFollowedBy(name);
            default:
                throw new IllegalArgumentException(how);
        }
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Pattern<Row, ?> group(Pattern<Row, ?> before, JsonNode step, AfterMatchSkipStrategy skip) {
        Pattern inner = pattern(step.get("group"), skip);
        if (before == null) {
            return Pattern.begin(inner, skip);
        }
        switch (step.get("how").asText()) {
            case "next":
                return ((Pattern) before).next(inner);
            case "followedBy":
                return ((Pattern) before).followedBy(inner);
            case "followedByAny":
                return ((Pattern) before).followedByAny(inner);
            default:
                throw new IllegalArgumentException(step.toString());
        }
    }

    private static Pattern<Row, ?> quantified(JsonNode step, Pattern<Row, ?> pattern) {
        if (step.has("from")) {
            int from = step.get("from").asInt();
            pattern = step.has("to") ? pattern.times(from, step.get("to").asInt()) : pattern.timesOrMore(from);
            switch (step.get("inside").asText()) {
                case "next":
                    pattern = pattern.consecutive();
                    break;
                case "followedByAny":
                    pattern = pattern.allowCombinations();
                    break;
                default:
                    break;
            }
        }
        if (step.path("greedy").asBoolean()) {
            pattern = pattern.greedy();
        }
        if (step.path("optional").asBoolean()) {
            pattern = pattern.optional();
        }
        return pattern;
    }

    /** A condition as the cases write it: a tree of lists, such as ["and", ["letter", "a"], ["v", ">", 3]]. */
    private static final class Condition extends IterativeCondition<Row> {
        private final String text;
        private final String symbol;
        private transient JsonNode tree;

        Condition(String text, String symbol) {
            this.text = text;
            this.symbol = symbol;
        }

        @Override
        public boolean filter(Row row, Context<Row> context) throws Exception {
            if (tree == null) {
                tree = new ObjectMapper().readTree(text);
            }
            return Boolean.TRUE.equals(holds(tree, row, context));
        }

        private Boolean holds(JsonNode node, Row row, Context<Row> context) throws Exception {
            switch (node.get(0).asText()) {
                case "letter":
                    return ((String) row.getField(3)).contains(node.get(1).asText());
                case "v":
                    return compare((Double) row.getField(4), node.get(1).asText(), node.get(2).asDouble());
                case "rises":
                    {
                        // against the row bound before to the same symbol, if any
                        Double before = null;
                        for (Row earlier : context.getEventsForPattern(symbol)) {
                            before = (Double) earlier.getField(4);
                        }
                        return before == null || compare((Double) row.getField(4), ">", before);
                    }
                case "last":
                    {
                        Double last = null;
                        for (Row earlier : context.getEventsForPattern(node.get(2).asText())) {
                            last = (Double) earlier.getField(4);
                        }
                        return last == null ? null : compare((Double) row.getField(4), node.get(1).asText(), last);
                    }
                case "sum":
                    {
                        double sum = node.get(1).asText().equals(symbol) ? (Double) row.getField(4) : 0;
                        for (Row earlier : context.getEventsForPattern(node.get(1).asText())) {
                            sum += (Double) earlier.getField(4);
                        }
                        return compare(sum, node.get(2).asText(), node.get(3).asDouble());
                    }
                case "and":
                    for (int i = 1; i < node.size(); i++) {
                        if (!Boolean.TRUE.equals(holds(node.get(i), row, context))) {
                            return false;
                        }
                    }
                    return true;
                default:
                    throw new IllegalArgumentException(node.toString());
            }
        }

        private static boolean compare(double left, String operator, double right) {
            switch (operator) {
                case ">":
                    return left > right;
                case "<":
                    return left < right;
                case "=":
                    return left == right;
                default:
                    throw new IllegalArgumentException(operator);
            }
        }
    }
}
