import org.apache.kafka.common.utils.Exit;

/**
 * Runs several of Kafka's tools one after another in one JVM: CLASS ARGUMENT... ";" CLASS ARGUMENT...
 * Prints a line "#### N" before the output of each tool. If a tool ends with an exit code other than 0, the program
 * ends. A "!" before the class means that the tool must fail.
 */
public class Tools {
    static class Ended extends Error {}

    static Integer exitCode;

    public static void main(String[] arguments) throws Throwable {
        Exit.setExitProcedure((code, message) -> {
            // Some tools catch this exception, and call "exit" again with another code. The first code is used.
            if (exitCode == null) exitCode = code;
            throw new Ended();
        });
        int number = 0;
        int start = 0;
        for (int end = 0; end <= arguments.length; end++) {
            if (end < arguments.length && !arguments[end].equals(";")) continue;
            System.out.println("#### " + number++);
            run(arguments[start], java.util.Arrays.copyOfRange(arguments, start + 1, end));
            start = end + 1;
        }
        // Some tools do not end their threads, and these threads would keep the JVM alive.
        System.exit(0);
    }

    static void run(String call, String[] arguments) throws Throwable {
        boolean mustFail = call.startsWith("!");
        String name = mustFail ? call.substring(1) : call;
        exitCode = null;
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (java.lang.reflect.InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Ended)) throw thrown.getCause();
        }
        boolean failed = exitCode != null && exitCode != 0;
        if (failed != mustFail) {
            System.err.println(name + " ended with " + exitCode);
            System.exit(failed ? exitCode : 1);
        }
    }
}
